"""Loading a model, and what is known and measured of its architecture."""
