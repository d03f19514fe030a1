"""Models of Marian itself. `huggingface` reads those that were converted for it."""
