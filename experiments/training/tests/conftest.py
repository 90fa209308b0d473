"""As the tests of the package run: on one thread a process, and without the network."""

import tests.conftest  # noqa: F401
