"""Names and files of the Hugging Face Hub, from its cache where the Hub cannot be reached."""

import contextlib
import re
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_PATIENCE = 3.0  # seconds until the first answer


@cache
def _is_reachable(_minute: int) -> bool:
    """Whether the Hub answers, through the user's own client and proxies."""
    from huggingface_hub import constants, get_session  # slow to import, and embedded prompts do not need it

    try:
        get_session().head(constants.ENDPOINT, timeout=_PATIENCE)
    except Exception:  # noqa: BLE001 (whatever the network, a proxy or a certificate raise)
        return False
    return True


@contextlib.contextmanager
def without_retries(source: str) -> Iterator[None]:
    """In this block, files come from the cache or fail at once if the Hub cannot be reached.

    The Hub's client would wait 23 s for each file. source: a repository; a folder on this machine does not need the
    Hub.
    """
    from unittest import mock  # imports asyncio

    from huggingface_hub import constants

    minute = int(time.monotonic() // 60)  # asked once a minute
    with contextlib.ExitStack() as stack:
        if not (Path(source).is_dir() or constants.HF_HUB_OFFLINE or _is_reachable(minute)):
            from datasets import config  # it has its own copy of the setting

            for module in (constants, config):
                stack.enter_context(mock.patch.object(module, "HF_HUB_OFFLINE", True))
        yield


def cached_commit(repository: str, revision: str | None) -> str | None:
    """The commit of this branch or tag when this machine last asked the Hub; None if it never did."""
    if re.fullmatch("[0-9a-f]{40}", revision or ""):
        return revision
    from huggingface_hub import constants

    name = "models--" + "--".join(repository.split("/")[:2])  # also for "owner/name/file.gguf"
    ref = Path(constants.HF_HUB_CACHE, name, "refs", revision or "main")
    return ref.read_text().strip() if ref.is_file() else None
