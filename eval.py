"""See README.md, or `python eval.py --help`."""

import sys

from transformer_jax import cli

if __name__ == "__main__":
    cli.run("eval", sys.argv)
