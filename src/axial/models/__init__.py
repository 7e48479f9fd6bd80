"""Integers in, exact probabilities out."""
