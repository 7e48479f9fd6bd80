"""Every format users have, each read by a module of its own into a stream of records.

`recognise.open_source` finds out what a path or a name is; data/packing.py writes what it finds.
A new format is a module here that yields records, and a line in `recognise`.
"""
