"""Documents: sentences of texts with layout and markup, and texts put together of translations.

It is between texts as people have them and the engine, which translates single sentences.
"""
