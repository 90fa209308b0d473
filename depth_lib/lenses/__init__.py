"""Lenses that are fitted: translations of the residual stream into the last layer's coordinates."""
