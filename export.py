"""See README.md, or `python export.py --help`."""

import sys

from transformer_jax import cli

if __name__ == "__main__":
    cli.run("export", sys.argv)
