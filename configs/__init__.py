"""Recipes: each file's `get_config()` returns a `transformer_jax.config.Config`."""
