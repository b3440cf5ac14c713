"""SVDP: `prompts` are offsets of single pixels."""
