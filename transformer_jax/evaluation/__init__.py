"""Scores of translations, and of a model on sentence pairs."""
