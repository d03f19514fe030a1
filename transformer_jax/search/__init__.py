"""Beam search and sampling over the decoder's cache: pure functions, for `jax.jit`."""
