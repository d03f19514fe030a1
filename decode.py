"""See README.md, or `python decode.py --help`."""

import sys

from transformer_jax.commands import entry

if __name__ == "__main__":
    entry.run("decode", sys.argv)
