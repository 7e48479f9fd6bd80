"""Any source -> one packed array -> batches; `sources` has one reader for each format."""
