"""Prompts, questions with levels of difficulty, questions with their answers, and their tokens."""
