"""The residual stream, its blocks as functions, and the head: torch alone, as it travels to servers."""
