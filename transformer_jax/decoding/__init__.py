"""Search over the decoder's cache, scoring of given pairs, and translation of text."""
