"""Integers in, exact probabilities out: config, masking, attention, model, likelihood, cost."""
