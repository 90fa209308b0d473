"""Before the first job: is the model there and running, and do client and server speak the same nnsight?"""

import difflib
import json
import time
import warnings
from importlib.metadata import PackageNotFoundError, version

from nnsight import TransformersModel
from nnsight.ndif import CRITICAL_PACKAGES

from .errors import NotReady
from .server import Server
from .status_line import StatusLine
from .waiting import Patience, patiently

_PASSED = {}  # (host, model key): (when, the versions of nnsight, torch and transformers there)
_VALID = 600  # seconds until it is looked at again


def model_key(llm: TransformersModel, host: str) -> str:
    """The key a server knows the model by. NotReady for a local folder, or if the Hub cannot say the model's name."""
    try:
        return llm.to_model_key()
    except Exception as error:  # noqa: BLE001 (huggingface_hub and httpx raise a dozen kinds)
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise NotReady(
            f"the Hub does not know the model {llm.repo_id!r}, by whose name a server finds it ({reason}); load it by "
            "its Hub id (owner/name) with a network, or run with remote=False",
            host,
        ) from error


def preflight(server: Server, key: str, patience: Patience, line: StatusLine) -> dict:
    """The server's versions of nnsight, torch and transformers, as far as it says them.

    NotReady, ServerUnreachable or RequestRefused if a job for the model with this key would fail there.
    """
    when, versions = _PASSED.get((server.host, key), (-_VALID, {}))
    if time.monotonic() - when >= _VALID:
        _check_model(server, key, patiently(lambda: server.about("/status"), patience, line, server.host))
        versions = _check_versions(server, patiently(lambda: server.about("/env"), patience, line, server.host))
        _PASSED[server.host, key] = time.monotonic(), versions
    return versions


def _check_model(server, key, status):
    if status is None:
        return  # a server that does not list its models says so when the job comes
    listed = _object(status.get("deployments")).values()
    deployments = [d for d in map(_object, listed) if d and d.get("deployment_level") != "COLD"]
    wanted = json.loads(key.split(":", 1)[1])
    ours = [d for d in deployments if _is(d, key, wanted)]
    states = {d.get("application_state") for d in ours}
    if "RUNNING" in states:
        return
    name = wanted["repo_id"] + (f" at {wanted['revision']}" if wanted.get("revision") else "")
    if ours:
        raise NotReady(
            f"{name} is on the server, but not running ({', '.join(sorted(map(str, states)))}); run again in some "
            "minutes",
            server.host,
            server_text=json.dumps(ours),
        )
    running = sorted({d.get("repo_id") for d in deployments if d.get("application_state") == "RUNNING"} - {None})
    near = difflib.get_close_matches(name, running, n=3, cutoff=0.3)
    shown = [*near, *(other for other in running if other not in near)]
    more = f" and {len(shown) - 12} more" if len(shown) > 12 else ""
    raise NotReady(
        f"{name} is not hosted there; running are {', '.join(shown[:12]) or 'no models at all'}{more}: choose one of "
        "them, or ask for it (nnsight.status() lists all)",
        server.host,
        server_text=json.dumps(deployments),
    )


def _is(deployment, key, wanted):
    if deployment.get("model_key") == key:
        return True
    same_task = deployment.get("task") in (None, wanted.get("task"))
    return same_task and deployment.get("repo_id") == wanted["repo_id"] and _main(deployment) == _main(wanted)


def _main(where):
    return where.get("revision") or "main"


def _check_versions(server, environment):
    theirs = _object(_object(environment).get("packages"))
    versions = {package: str(theirs[package]) for package in sorted(CRITICAL_PACKAGES & set(theirs))}
    for package in versions:
        try:
            here = version(package)
        except PackageNotFoundError:
            continue
        if _series(here) == _series(theirs[package]):
            continue
        if package == "nnsight":
            raise NotReady(
                f"the server runs nnsight {theirs[package]}, this client {here}, and requests differ between them; "
                f"pip install nnsight=={theirs[package]}",
                server.host,
            )
        warnings.warn(
            f"{server.host} runs {package} {theirs[package]}, this client {here}: its numbers may differ slightly from "
            "a local run's",
            stacklevel=2,
        )
    return versions


def _object(answer):
    """What a server says, if it is a JSON object: what it does not say is no reason not to try."""
    return answer if isinstance(answer, dict) else {}


def _series(text):
    return str(text).split("+")[0].split(".")[:2]
