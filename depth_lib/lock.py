"""One process at a time: a lock file that the kernel lets go of when its holder dies, however it dies.

The lock is flock's, not the file's existence: a file left behind by a killed process is free, and goes when the next
holder is done. On NFS (Linux 2.6.12 and newer) flock is a lock on the server, seen by all clients; a client that
crashed keeps it until the server's lease has run out, about 90 s. Lustre needs the mount option flock.
"""

import contextlib
import errno
import json
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has none; two sweeps on one folder are then the user's to avoid
    fcntl = None

COMPUTING = ".computing"  # in a run's folder, held while one of its results is computed and written
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Busy(Exception):
    """Another process holds the lock; the message says which and since when."""


class Lock:
    """A lock that this process holds; what `note` writes into its file is what others read about the holder."""

    def __init__(self, path: Path, descriptor: int):
        self.path, self.descriptor = path, descriptor
        self._about = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.time()}
        self.note()

    def note(self, **facts) -> None:
        """Say how far the holder is. A full disk loses the note, never the lock."""
        self._about |= facts
        content = json.dumps(self._about).encode()
        with contextlib.suppress(OSError):
            os.pwrite(self.descriptor, content.ljust(os.fstat(self.descriptor).st_size), 0)


@contextlib.contextmanager
def hold(path: str | Path, wait: bool = True, say: Callable[[str], None] = lambda _: None) -> Iterator[Lock]:
    """Hold the lock at this path for a block; `say` is told once who holds it, if anybody has to be waited for.

    Raises Busy without `wait`, and OSError if the file cannot be made. On a file system without locks: a warning.
    """
    descriptor = None
    while (descriptor := _attempt(path)) is None:
        about = holder(path)
        if about is None:
            time.sleep(0.02)  # a reader was looking, or the holder is on its way out
            continue
        if not wait:
            raise Busy(describe(about))
        say(describe(about))
        say = _nothing
        time.sleep(0.5)
    try:
        yield Lock(Path(path), descriptor)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)  # while it is held: who has opened this one finds another at its path, and tries again
        os.close(descriptor)


def holder(path: str | Path) -> dict | None:
    """What the process that holds this lock says about itself ({} if that cannot be read); None if nobody does."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        if not _locked(descriptor, shared=True):
            with contextlib.suppress(OSError, ValueError):
                return json.loads(os.read(descriptor, 4096))
            return {}
    finally:
        os.close(descriptor)
    return None


def describe(about: dict) -> str:
    """Who holds a lock, as people say it: "process 123 on host, for 2:05"."""
    if not about:
        return "another process"
    where = "" if about["host"] == socket.gethostname() else f" on {about['host']}"
    return f"process {about['pid']}{where}, for {elapsed(time.time() - about['since'])}"


def elapsed(seconds: float) -> str:
    """0:05, 12:05, 2 h 05 min."""
    minutes, seconds = divmod(max(0, int(seconds)), 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes}:{seconds:02d}"


def remove_leftovers(folder: str | Path) -> None:
    """Remove what a killed writer left half-written in a run's folder; for who holds its lock: no writer is alive."""
    for part in Path(folder).glob(".*.part"):
        part.unlink(missing_ok=True)


def _attempt(path) -> int | None:
    """A descriptor that holds the lock; None if another process has it, or its file is gone by now."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if _locked(descriptor, shared=False) and os.path.samestat(os.fstat(descriptor), os.stat(path)):
            return descriptor
    except FileNotFoundError:
        pass
    os.close(descriptor)
    return None


def _locked(descriptor: int, shared: bool) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            warnings.warn("this file system has no locks (flock); start only one sweep at a time on it", stacklevel=4)
            return True
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def _nothing(*_) -> None:
    return None
