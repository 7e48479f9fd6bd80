"""The studio: a page and an HTTP API that do with a model what the command line does, live."""
