"""Results of probes: their names and shapes, reading and writing them, and what they were made from."""
