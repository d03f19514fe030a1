"""CTranslate2 directories: written, and read to translate with the package ctranslate2."""
