"""What the core does not need: other tools' formats, documents, the server, pictures, recipes.

The core imports nothing of this. What it opens by name, it opens when it is asked for.
"""
