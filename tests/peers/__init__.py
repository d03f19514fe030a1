"""Comparisons with torch, transformers and CTranslate2; run by `make test-peers`."""
