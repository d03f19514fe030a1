"""See README.md, or `python decode.py --help`."""

import sys

from transformer_jax import cli

if __name__ == "__main__":
    cli.run("decode", sys.argv)
