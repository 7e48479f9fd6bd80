"""Any source to one packed array to batches."""
