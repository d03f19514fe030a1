"""Text in, text out: models are loaded, texts become batches, and batches translations."""

# Here, because the command line shows them before JAX is loaded.
WINDOW = 4096  # sentences sorted together, and held in memory
ON_ERROR = ("raise", "skip")
