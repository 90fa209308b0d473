"""Whether a server allows gradients: NDIF runs most keys' jobs in a sandbox, a process apart from the model's."""

import re

import httpx

from .backend import host_and_key
from .errors import NotReady

NO_GRADIENT = re.compile("does not require grad|not have been used in the graph|OutOfOrderError.*grad", re.DOTALL)
NO_GRADIENTS_THERE = (
    "the server runs this key's jobs in its sandbox, which no gradient leaves; leave out method, or give "
    'method="increments"'
)


def method_there(remote: bool | str, method: str | None) -> str:
    """ "gradients" or "increments": what was asked for, or unless it was, what a server is known to be able to do.

    Jobs of keys with the tag `trusted` run beside the weights, others in the sandbox; of a server that knows no such
    key, or no keys at all, it is not known. Raises NotReady if gradients are asked for where the sandbox has none, and
    if there is no key or no such host.
    """
    if not remote or remote == "local" or method == "increments":
        return method or "gradients"
    identity = _whoami(*host_and_key(remote))
    trusted = "trusted" in identity.get("tags", ())
    if method and identity.get("email") and not trusted:
        raise NotReady(NO_GRADIENTS_THERE)
    return method or ("gradients" if trusted else "increments")


def _whoami(host, key):
    """The email and tags of a key; {} where the server does not say."""
    try:
        return httpx.get(f"{host}/whoami", headers={"ndif-api-key": key}, timeout=10).raise_for_status().json()
    except (httpx.HTTPError, ValueError):
        return {}
