"""See README.md, or `python export.py --help`."""

import sys

from transformer_jax.commands import main

if __name__ == "__main__":
    main.run("export", sys.argv)
