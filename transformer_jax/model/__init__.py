"""The encoder-decoder: for complete sequences, and one position at a time."""
