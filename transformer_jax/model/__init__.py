"""The encoder-decoder: over whole sequences, and one position at a time."""
