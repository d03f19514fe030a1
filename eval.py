"""See README.md, or `python eval.py --help`."""

import sys

from transformer_jax.commands import entry

if __name__ == "__main__":
    entry.run("eval", sys.argv)
