"""Writing to a disk so that nothing is half there and nothing is overwritten unseen."""

import os
import uuid
from collections.abc import Mapping
from pathlib import Path


def cache_folder(kind: str) -> Path:
    """Where a kind of thing is kept: `depth_lib/<kind>` in $XDG_CACHE_HOME, or in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "depth_lib" / kind


def move_aside(path: Path, reason: str) -> Path:
    """Rename a file to `<name>.<reason>-1`, or the next free number; OSError if the folder cannot be written."""
    number = 1
    while True:
        aside = path.with_name(f"{path.name}.{reason}-{number}")
        try:
            os.close(os.open(aside, os.O_CREAT | os.O_EXCL))  # reserves the name: two processes never take the same
        except FileExistsError:
            number += 1
            continue
        os.replace(path, aside)
        return aside


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write files of one folder so that each appears complete or not at all, and none if writing any of them fails."""
    parts = {path: path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part") for path in contents}
    try:
        for path, part in parts.items():
            with open(part, "xb") as file:
                file.write(contents[path])
                file.flush()
                os.fsync(file.fileno())
        for path, part in parts.items():
            os.replace(part, path)
        for folder in {path.parent for path in contents}:
            _sync_folder(folder)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """The rename itself survives a power cut only once the folder is on the disk."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
