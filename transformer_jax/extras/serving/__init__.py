"""An HTTP server of translations: its own API, those of LibreTranslate and DeepL, and a page.

One request passes these modules, in this order:

    app            FastAPI: limits, keys, metrics, and the routes of each API
    v1             JSON of this project's API        -> settings and texts
    libretranslate, deepl                            -> the same, of their APIs
    service        settings and texts                -> futures of `Translator.submit`

`errors` says what is wrong in the form of each API, `keys` knows clients, `metrics` counts, and
`page/` is what a browser gets.
"""
