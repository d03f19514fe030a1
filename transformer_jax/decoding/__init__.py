"""Search over the decoder's cache, scoring of given pairs, and translation of text."""

# Here, because the command line shows them before JAX is loaded.
WINDOW = 4096  # sentences sorted together, and held in memory
ON_ERROR = ("raise", "skip")
