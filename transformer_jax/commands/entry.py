"""Where commands start. Ctrl-C is handled before anything else is loaded, which takes seconds."""

from collections.abc import Sequence
from typing import NoReturn

from transformer_jax import interrupts


def main() -> None:
    """Entry point of `transformer-jax COMMAND [flags]`, and of `python -m transformer_jax`."""
    interrupts.install()
    from transformer_jax.commands import main as commands

    commands.main()


def run(command: str, argv: Sequence[str]) -> NoReturn:
    """Runs a command with its flags and ends the process; `argv[0]` is the program's name."""
    interrupts.install()
    from transformer_jax.commands import main as commands

    commands.run(command, argv)
