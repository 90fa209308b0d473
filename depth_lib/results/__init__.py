"""A probe's results: what they hold, where they lie, what they were made from, and how they reach the disk."""
