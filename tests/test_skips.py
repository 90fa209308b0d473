"""With CI set, a test that skips for a reason that nobody listed fails."""

import os
import re
import subprocess
import sys

import pytest

from tests.conftest import MAY_SKIP
from tests.marks import slow
from tests.notebooks import ROOT

SKIP = "import pytest\n\ndef test_it():\n    pytest.skip({reason!r})\n"
MODULE_SKIP = "import pytest\n\npytest.skip({reason!r}, allow_module_level=True)\n"


@pytest.mark.parametrize("ci, failed", [("1", {"test_unlisted.py", "test_unlisted_module.py"}), slow("", set())])
def test_an_unlisted_skip_fails_where_ci_is_set(tmp_path, ci, failed):
    for name, reason in ("unlisted", "no network"), ("listed", f"{next(iter(MAY_SKIP))}, 1"):
        (tmp_path / f"test_{name}.py").write_text(SKIP.format(reason=reason))
        (tmp_path / f"test_{name}_module.py").write_text(MODULE_SKIP.format(reason=reason))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    command += ["--continue-on-collection-errors", "."]
    environment = os.environ | {"CI": ci, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert {*re.findall(r"^(?:FAILED|ERROR) (\w+\.py)", done.stdout, re.M)} == failed, done.stdout
    assert ("not in MAY_SKIP" in done.stdout) == bool(failed)
