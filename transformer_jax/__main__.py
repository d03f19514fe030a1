"""`python -m transformer_jax COMMAND`: the same as `transformer-jax COMMAND`."""

from transformer_jax.commands.entry import main

if __name__ == "__main__":
    main()
