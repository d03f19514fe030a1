"""See README.md, or `python serve.py --help`."""

import sys

from transformer_jax.commands import main

if __name__ == "__main__":
    main.run("serve", sys.argv)
