"""A run on disk or in a bucket: its work directory, checkpoints, digests and lock."""
