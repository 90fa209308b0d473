"""Prompts, questions by difficulty level, questions with answers, and their tokens."""
