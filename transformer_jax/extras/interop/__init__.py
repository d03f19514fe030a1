"""Models from and to other tools, each way checked against the tool itself."""

# Here, because the command line shows them before JAX is loaded.
FORMATS = ("marian", "ctranslate2", "stablehlo")
QUANTIZATIONS = ("float32", "float16", "int8")  # of ctranslate2
