"""`python -m transformer_jax.plotting PICTURE --workdir=DIR`: the command `plot`."""

import sys

from transformer_jax.commands.main import run

if __name__ == "__main__":
    run("plot", ["python -m transformer_jax.plotting", *sys.argv[1:]])
