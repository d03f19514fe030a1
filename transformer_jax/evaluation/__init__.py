"""Scores of translated text, and of a model on sentence pairs."""
