"""Atomic writes, files moved aside instead of overwritten, and locks."""

import contextlib
import itertools
import os
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from filelock import FileLock, SoftFileLock, Timeout

COMPUTING = ".computing"  # in a run's folder; locked while a result is computed and written


class Busy(Exception):
    """Another process holds the lock; the message says which."""


def cache_folder(kind: str) -> Path:
    """The cache folder `depth_lib/<kind>` in $XDG_CACHE_HOME, or in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "depth_lib" / kind


def can_be_folder(name: str) -> bool:
    """Whether a folder can have this name."""
    return Path(name).name == name and name not in ("", "..")


def move_aside(path: Path, reason: str) -> Path:
    """Rename a file to `<name>.<reason>-1`, or the next free number; OSError if the folder cannot be written."""
    numbers = itertools.count(1)
    while True:
        aside = path.with_name(f"{path.name}.{reason}-{next(numbers)}")
        with contextlib.suppress(FileExistsError):
            aside.touch(exist_ok=False)  # reserves the name for this process
            return path.replace(aside)


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write files so that each appears complete or not at all, in this order, and none unless all could be written.

    If renaming one fails after that, those before it are new and the others as they were.
    """
    temporary = {path: path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part") for path in contents}
    try:
        for path, part in temporary.items():
            with open(part, "xb") as file:
                file.write(contents[path])
                file.flush()
                os.fsync(file.fileno())
        for path, part in temporary.items():
            os.replace(part, path)
    finally:
        for part in temporary.values():
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def hold(path: str | Path, wait: bool = True) -> Iterator[None]:
    """Hold the lock at this path for a block; the operating system releases it when the process ends, however it ends.

    `<path>.holder` has the process id and host. If another process holds the lock, this is printed before waiting;
    without `wait` it raises Busy. OSError if the file cannot be made. The lock file stays afterwards, unlocked.

    On a file system without flock the file itself is the lock. The lock of a killed process can then only be removed on
    its own machine, so the message says which file to delete.
    """
    lock, note = FileLock(path), Path(f"{path}.holder")
    try:
        lock.acquire(timeout=0.3)  # `holder` holds it for a moment to see whether it is free
    except Timeout:
        why = f"{_read(note)} holds {path}"
        if isinstance(lock, SoftFileLock):
            why += "; if that process is gone, delete the file"
        if not wait:
            raise Busy(why) from None
        print(f"waiting: {why}", flush=True)
        lock.acquire()
    try:
        with contextlib.suppress(OSError):  # a full disk loses the note, not the lock
            note.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        with contextlib.suppress(OSError):
            note.unlink(missing_ok=True)
        lock.release()


def holder(path: str | Path) -> str | None:
    """The process that holds this lock ("process 123 on host"); None if there is none."""
    try:
        if Path(path).exists():
            with FileLock(path, timeout=0):
                pass
    except Timeout:
        return _read(Path(f"{path}.holder"))
    except OSError:  # another user's
        pass
    return None


def remove_leftovers(folder: str | Path) -> None:
    """Remove half-written files of killed processes from a run's folder, if they are older than an hour.

    A younger file may still be written by another machine: not every network drive has locks between machines.
    """
    for part in Path(folder).glob(".*.part"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - part.stat().st_mtime > 3600:
                part.unlink()


def _read(note: Path) -> str:
    with contextlib.suppress(OSError):
        return note.read_text() or "another process"
    return "another process"
