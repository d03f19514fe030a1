"""Formats of documents: a reader for each."""
