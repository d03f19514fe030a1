"""Public data sets: where they are, their digests, and the texts that are made of them."""
