"""Hugging Face directories of Marian, M2M-100, NLLB and Pegasus, read without torch."""
