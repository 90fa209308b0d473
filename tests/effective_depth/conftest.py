import pytest


@pytest.fixture(scope="session")
def stats():
    """scipy.stats, which takes a second to import: only where it is used."""
    from scipy import stats

    return stats
