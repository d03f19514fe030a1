"""Models from and to other tools, each way checked against the tool itself."""
