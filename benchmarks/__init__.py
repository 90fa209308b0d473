"""How fast the probes are: against the published way of one full forward an intervention, and against arithmetic."""
