"""Lossless compression by a model: logits on a grid, an integer entropy coder, tiles, the file."""
