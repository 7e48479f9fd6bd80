"""A model on a data set, in bits."""
