"""Tests beside other tools (torch, transformers, CTranslate2); run by `make test-peers`."""
