"""Atomic writes, files moved aside instead of overwritten, and locks."""

import contextlib
import hashlib
import itertools
import json
import os
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from errno import ENOLCK, ENOSYS, EOPNOTSUPP
from pathlib import Path

from filelock import FileLock, SoftFileLock, Timeout

NO_LOCKS = (ENOLCK, ENOSYS, EOPNOTSUPP)  # of file systems without flock


def cache_folder(kind: str) -> Path:
    """The cache folder `depth_lib/<kind>` in $XDG_CACHE_HOME, or in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "depth_lib" / kind


def path_of(path: str | Path) -> Path:
    """A path that a user gave, with the home folder for its ~."""
    return Path(os.path.expanduser(path))


def can_be_folder(name: str) -> bool:
    """Whether a folder can have this name."""
    return Path(name).name == name and name not in ("", "..")


def in_project(path: str | Path) -> Path:
    """A path; in notebooks/ of a clone, where Jupyter starts kernels, relative to the clone's root."""
    root = Path(__file__).resolve().parents[1]
    path = path_of(path)
    return root / path if Path.cwd() == root / "notebooks" and not path.exists() else path


CANNOT_WRITE = "make the path writable (or free up space), or set a different OUT"


def writable_folder(folder: str | Path, error: type[Exception]) -> Path:
    """A folder to save something in, created if there is none. Raises `error` if that is impossible."""
    if not str(folder):
        raise error(f"folder must be the path of a folder, got {folder!r}")
    path = path_of(folder)
    if path.is_file():
        raise error(f"{folder} is a file; use the path of a folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as problem:
        raise error(f"{folder} cannot be written ({problem.strerror}); use a different folder") from problem
    return path


def empty_folder(folder: str | Path, error: type[Exception]) -> Path:
    """`writable_folder`, without any file that saving could replace."""
    path = writable_folder(folder, error)
    if any(path.iterdir()):
        raise error(f"{folder} is not empty, and saving could replace its files; use a new folder")
    return path


def move_aside(path: Path, reason: str) -> Path:
    """Rename a file or folder to `<name>.<reason>-1`, or the next free number."""
    names = (path.with_name(f"{path.name}.{reason}-{number}") for number in itertools.count(1))
    return path.rename(next(name for name in names if not name.exists()))


def _linked(path: Path) -> Path:
    """The file that a symbolic link points to; any other path as it is."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def write_together(contents: Mapping[Path, bytes], ours: Callable | None = None) -> None:
    """Write files so that each appears complete or not at all, in this order, and none unless all could be written.

    A symbolic link stays, and the file that it points to is written. With `ours`, a file that is already there and for
    whose content it is not true is renamed to `<name>.replaced-1`.
    """
    contents = {_linked(path): content for path, content in contents.items()}
    temporary = {path: path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part") for path in contents}
    try:
        for path, part in temporary.items():
            with open(part, "xb") as file:
                file.write(contents[path])
                file.flush()
                os.fsync(file.fileno())
        for path, part in temporary.items():
            if ours and path.exists():
                there = path.read_bytes() if path.is_file() else None
                if there != contents[path] and not ours(there):
                    move_aside(path, "replaced")
            os.replace(part, path)
    finally:
        for part in temporary.values():
            part.unlink(missing_ok=True)


def write_beside(contents: Mapping[Path, bytes], ours: Callable = lambda content: False) -> None:
    """`write_together`, which renames every other file that is there, unless it is `ours`."""
    write_together(contents, ours)


def write_again(contents: Mapping[Path, bytes]) -> None:
    """`write_beside` for files of one folder, which replaces what this function wrote there before.

    `.written` in the folder has the hash of each of these files.
    """
    record, hashes = next(iter(contents)).parent / ".written", {}
    with contextlib.suppress(OSError, ValueError):
        hashes = dict(json.loads(record.read_bytes()))
    write_beside(contents, lambda there: there is not None and _hash(there) in hashes.values())
    hashes |= {path.name: _hash(content) for path, content in contents.items()}
    write_together({record: json.dumps(hashes, indent=1).encode()})


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Held(Exception):
    """Another process holds a lock; the message says which process and which lock."""


@contextlib.contextmanager
def hold(path: str | Path, wait: bool = True) -> Iterator[None]:
    """Hold the lock at this path for a block. The operating system releases it when the process ends, however it ends.

    If another process holds it, that is printed before waiting, or, without `wait`, raised as `Held`. `<path>.holder`
    has the holder's process id and host. On a file system without locks, the file `<path>.held` is the lock; a killed
    process leaves it behind, and the message then says to delete it.
    """
    lock, note = FileLock(path), Path(f"{path}.holder")
    try:
        try:
            lock.acquire(timeout=0.3)  # `holder` holds it for a moment to see whether it is free
        except (OSError, NotImplementedError) as error:
            if getattr(error, "errno", ENOSYS) not in NO_LOCKS:
                raise
            lock = SoftFileLock(f"{path}.held")
            lock.acquire(timeout=0.3)
    except Timeout:
        why = f"{_read(note)} holds {path}"
        if isinstance(lock, SoftFileLock):
            why += f"; if that process is gone, delete {lock.lock_file}"
        if not wait:
            raise Held(why) from None
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
    except (OSError, NotImplementedError):  # another user's, or a file system without locks
        return _read(Path(f"{path}.holder")) if Path(f"{path}.held").exists() else None
    return None


def _read(note: Path) -> str:
    with contextlib.suppress(OSError):
        return note.read_text() or "another process"
    return "another process"
