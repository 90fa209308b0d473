"""The probes as they run where the model is, here or on a server: they import torch and one another only."""
