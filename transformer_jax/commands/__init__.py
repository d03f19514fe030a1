"""The commands: one module each, with its flags."""
