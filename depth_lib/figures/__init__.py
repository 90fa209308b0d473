"""Pictures of one run, of many runs, and the papers' own."""
