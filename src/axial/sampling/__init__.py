"""A model one element at a time."""
