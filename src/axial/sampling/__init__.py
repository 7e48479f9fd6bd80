"""A model one element at a time: decoder and KV caches, noise, draw, stream, complete, extend."""
