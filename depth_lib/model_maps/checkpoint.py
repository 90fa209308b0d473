"""What a killed run goes on from: one file, whole or not at all, of which memory never holds a second copy."""

import contextlib
import contextvars
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import torch

_FILE = contextvars.ContextVar("checkpoint", default=None)
_PAUSE, _SHARE = 20.0, 0.05  # seconds between two writings, or what makes them this share of the time


@contextlib.contextmanager
def resumable(artifact: str | Path) -> Iterator[None]:
    """Keep what maps fitted in this block have so far beside `artifact`, and forget it when the block ends without an
    error. Write the artifact inside the block."""
    token = _FILE.set(Path(artifact))
    try:
        yield
    finally:
        _FILE.reset(token)
    for left in Path(artifact).parent.glob(f".{Path(artifact).name}.*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)


def folder_beside(name: str) -> Path | None:
    """A folder that goes with the checkpoint; None where nothing is kept."""
    artifact = _FILE.get()
    return artifact and artifact.with_name(f".{artifact.name}.{name}")


class Checkpoint:
    """The state of one computation, named by the hash of all that decides it: another one is never taken for it."""

    def __init__(self, settings: str):
        artifact = _FILE.get()
        self.path = artifact and artifact.with_name(f".{artifact.name}.{settings}.moments")
        self._next = time.monotonic() + _PAUSE

    def read(self, device: torch.device) -> dict | None:
        """What was kept, on `device`; None if there is nothing, or nothing readable."""
        if self.path is None or not self.path.exists():
            return None
        try:
            return torch.load(self.path, map_location=device, weights_only=True)
        except Exception:  # noqa: BLE001 (torch raises a dozen kinds for damaged files): computed again, then
            return None

    def keep(self, state: dict, now: bool = False) -> None:
        """Write `state` if it is time to."""
        if self.path is None or not (now or time.monotonic() >= self._next):
            return
        began = time.monotonic()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write(state, self.path)
        self._next = time.monotonic() + max(_PAUSE, (time.monotonic() - began) / _SHARE)


def write(state: dict, path: Path) -> None:
    """torch.save straight to the disk: the file is there complete or not at all."""
    part = path.with_name(f"{path.name}.part")
    with open(part, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
