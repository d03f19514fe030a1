"""Optimizer, pure step, the runners that put it on devices, and the loop."""
