"""The server that `remote` names: its address, its key, and its answers before a job is sent."""

import contextlib
import functools
import math
import os
import re
import socket
import sys
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx
from nnsight import CONFIG
from nnsight.ndif import EnvComparison, get_local_env

from ..params import HOST, not_among
from .errors import NotReady

NO_GRADIENT = re.compile("(?s)does not require grad|not have been used in the graph|OutOfOrderError.*grad")
NO_GRADIENTS_THERE = (
    "the server runs this key's jobs in its sandbox, which no gradient leaves; leave out method, or use "
    'method="increments"'
)


def from_environment(name: str, kind: type, default: float) -> Any:
    """A number above 0 in an environment variable; NotReady for anything else in it."""
    text = os.environ.get(name) or default
    with contextlib.suppress(ValueError, OverflowError):
        if 0 < (value := kind(text)) < math.inf:
            return value
    what = "an integer" if kind is int else "a number"
    raise NotReady(f"{name} must be {what} above 0, got {text}; set it to one, or unset it")


def host_of(remote: bool | str) -> str:
    """The URL of the server that `remote` names; NotReady if it names none."""
    # the current environment; nnsight's CONFIG has that of its import
    host = (os.environ.get("NDIF_HOST") or CONFIG.API.HOST) if remote is True else remote
    if not re.fullmatch(HOST, str(host)):
        variable, use = ("NDIF_HOST", "") if remote is True else ("remote", 'True, False, "local" or ')
        raise NotReady(f"{variable}={host!r} is not valid; use {use}a URL (http://HOST:PORT)")
    return str(host).rstrip("/")


@functools.cache  # a name that was found may not be found for a while
def _check_name(host: str, variable: str) -> None:
    """NotReady if no machine has the name in this URL, which the variable gives."""
    name = urlsplit(host).hostname
    try:
        if not getproxies():  # which look names up themselves
            socket.getaddrinfo(name, None)
    except (OSError, UnicodeError) as error:
        problem = getattr(error, "strerror", None) or error
        raise NotReady(f"unknown host {name} ({problem}); correct {variable}, or check the network") from None


def host_and_key(remote: bool | str) -> tuple[str, str]:
    """The server that `remote` names and the key for it, which may be "" for your own server.

    Raises NotReady if there is no host, for one whose name is not known, or for NDIF without a key.
    """
    host = host_of(remote)
    if not (os.environ.get("NDIF_API_KEY") or CONFIG.API.APIKEY):
        CONFIG._from_env()  # a Colab secret may have been granted since
    key = (os.environ.get("NDIF_API_KEY") or CONFIG.API.APIKEY or "").strip()
    # httpx's error for a line break in a key would show the key
    if not re.fullmatch("[!-~]+", key) and (key or host == host_of(True)):
        raise NotReady(
            f"there is no NDIF key for {host}, or it has invalid characters; get one at https://login.ndif.us and set "
            "the environment variable (or Colab secret) NDIF_API_KEY to it, never in the notebook itself"
        )
    _check_name(host, "NDIF_HOST" if remote is True else "remote")
    return host, key


def method_there(remote: bool | str, method: str | None) -> str:
    """ "gradients" or "increments": as requested, or as the server allows.

    NDIF runs jobs of keys with the tag `trusted` beside the weights, and others in a sandbox, which returns no
    gradients. Raises NotReady if there is no key or host.
    """
    if method and (problem := not_among(("gradients", "increments"), "method", method)):
        raise ValueError(problem)
    if method or not remote or remote == "local":
        return method or "gradients"
    tags = _told(*host_and_key(remote), "whoami").get("tags")
    return "gradients" if isinstance(tags, list) and "trusted" in tags else "increments"


@functools.cache
def tell_about(host: str, key: str) -> None:
    """Print once per server: that the key is sent there, unless it is NDIF, and which packages have different versions
    there.
    """
    if key and host != "https://api.ndif.us":
        say(f"NDIF_API_KEY is sent to {host} (unencrypted if that begins with http:)")
    there = _told(host, key, "env")
    differ = {}
    with contextlib.suppress(Exception):  # of a server that describes itself in another way
        differ = there and EnvComparison(get_local_env(), there).critical_mismatches
    versions = [f"{name} {of['remote']} ({of['local']} on this machine)" for name, of in sorted(differ.items())]
    if versions:
        say(f"{host} has {', '.join(versions)}; numbers may differ from those of this machine")


def _told(host, key, what):
    """The server's answer to GET /<what>; {} if there is none."""
    try:
        answer = httpx.get(f"{host}/{what}", headers={"ndif-api-key": key}, timeout=10).raise_for_status().json()
    except (httpx.HTTPError, ValueError):
        return {}
    return answer if isinstance(answer, dict) else {}


def say(sentence: str) -> None:
    """Print a line to stderr, even if progress is not shown."""
    print(sentence, file=sys.stderr)
