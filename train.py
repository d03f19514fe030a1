"""See README.md, or `python train.py --help`."""

import sys

from transformer_jax import cli

if __name__ == "__main__":
    cli.run("train", sys.argv)
