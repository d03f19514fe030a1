"""Checks of a training run: dry run, HLO, replay of a step, verified resume."""
