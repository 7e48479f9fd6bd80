"""A run: its configuration, start, loop, step, optimizer, metrics and log."""
