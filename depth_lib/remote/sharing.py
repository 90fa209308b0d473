"""Several processes at one journal: none submits what another has submitted, none removes what another still needs.

Both are flock's locks (depth_lib.lock): a killed process holds none.
"""

import contextlib
import os
import shutil
import time
from pathlib import Path

from ..lock import _locked

USED = ".used"


@contextlib.contextmanager
def used(path, when_last):
    """Use the journal whose lock file is at `path`; whoever is last at it calls when_last() and removes the file.

    Raises OSError if the file cannot be made.
    """
    descriptor = _shared(path)
    try:
        yield
    finally:
        # RunSpec once: who is refused has lost its share, so that of two who end at a time one is the last.
        if _locked(descriptor, shared=False) and _is_at(descriptor, path):
            with contextlib.suppress(OSError):
                when_last()
                path.unlink()
        os.close(descriptor)


def remove_unused(folder):
    """Remove a folder of journals, unless a live process uses one of them."""
    with contextlib.ExitStack() as held:
        for path in Path(folder).glob(f"*{USED}"):
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDWR)
                held.callback(os.close, descriptor)
                if not _locked(descriptor, shared=False):
                    return
        shutil.rmtree(folder, ignore_errors=True)


def _shared(path):
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # the folder went, with the last user of all its journals
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            if _locked(descriptor, shared=True) and _is_at(descriptor, path):
                return descriptor
            os.close(descriptor)
        time.sleep(0.02)  # the last user is on its way out


def _is_at(descriptor, path):
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
