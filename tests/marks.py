"""Marks of a test's parameters."""

import pytest


def slow(*values):
    """A case that only the slow tests take."""
    return pytest.param(*values, marks=pytest.mark.slow)


def others_slow(names, quick):
    """The names as parameters of a test, those that are not quick marked slow."""
    return [name if name in quick else slow(name) for name in names]
