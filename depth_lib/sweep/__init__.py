"""A study as make runs it: a run is a model x a dataset."""
