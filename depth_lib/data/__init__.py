"""Prompts, questions by level of difficulty, questions with answers, and their tokens."""
