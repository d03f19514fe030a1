"""From parallel text to batches: sources -> tokenizer -> token cache -> batch plan -> loader."""
