"""Several calls of probes as one job, for queues where waiting dominates: prompt by prompt, within a time."""

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from nnsight import TransformersModel

from .models.check import RUNNING
from .remote.deployment import Deployment
from .remote.journal import entries, journal_folder, journalled, journalled_at
from .remote.status_line import StatusLine
from .remote.travel import settings_hash
from .session import cut, job, joined, minutes_per_job, planned


def together(
    llm: TransformersModel, wanted: Sequence[tuple[Path, Callable]], remote: bool | str, artifact: Path
) -> None:
    """Have `wanted`, pairs of an artifact and a function that calls a probe, computed in one job instead of many.

    Prompt by prompt, so that the probes share each prompt's clean run; calls without prompts come last. Each call's
    result is journalled beside its artifact, where the same call finds it afterwards. A job begins no prompt of a
    probe after DEPTH_LIB_MINUTES_PER_JOB: what it leaves out is the next job's. The jobs themselves are journalled
    beside `artifact`. The caller sees to it that no other process does the same. Raises what `run` raises.
    """
    deployment, calls = Deployment(llm, remote), {}
    for place, function in wanted:
        calls |= {deployment.settings(call): replace(call, artifact=place) for call in planned(function)}
    pieces, found = _by_prompt(calls, remote), {}
    with journalled(artifact):
        jobs = [entry.calls for entry in entries(journal_folder(artifact))]  # of a process that was killed
        jobs = [names for names in jobs if names and pieces.keys() >= set(names)]
        while names := jobs.pop(0) if jobs else _missing(calls, pieces, found):
            _one_job(deployment, calls, pieces, names, found)


def _by_prompt(calls, remote):
    """The calls cut into one for each prompt, in the order of the prompts, by names that begin with their settings."""
    pieces, prompts = {}, []
    for settings, call in calls.items():
        for k, piece in enumerate(cut(call, remote, per_job=1)):
            pieces[f"{settings}:{k}"] = piece
            if _ids(piece) not in prompts:
                prompts.append(_ids(piece))

    def place(named):
        ids = _ids(named[1])
        return ids is None, prompts.index(ids)

    return dict(sorted(pieces.items(), key=place))


def _ids(piece):
    """The tokens of its one prompt, which has positions beside them or not; None if it has no prompt."""
    item = None if piece.over in (None, "layers") else piece.arguments[piece.over][0]
    return item[0] if isinstance(item, tuple) else item


def _missing(calls, pieces, found):
    """The names of what has not been computed."""
    kept = {settings for settings, call in calls.items() if _is_kept(settings, call)}
    return [name for name in pieces if name not in found and name.partition(":")[0] not in kept]


def _is_kept(settings, call):
    path = journal_folder(call.artifact) / f"{settings}.json"
    return any(entry.path == path and entry.state == "done" for entry in entries(path.parent))


def _one_job(deployment, calls, pieces, names, found):
    """One job for the pieces of these names, as far as it gets: `found` has what it computed, and calls that are whole
    are kept beside their artifacts."""
    line = StatusLine(f"{len(names)} pieces of work in one job that begins none after {minutes_per_job()} minutes")
    with deployment.entry(settings_hash(calls=names), line, probe="together", calls=names) as joint:
        found |= job(deployment, {name: pieces[name] for name in names}, joint, line)
        for settings, call in calls.items():
            results = [found.get(name) for name in pieces if name.startswith(settings)]
            if not all(results) or _is_kept(settings, call):
                continue
            buffer, facts = io.BytesIO(), {"probe": call.probe.__qualname__, "part": call.part}
            alone = {"model": RUNNING[deployment.llm], "results": {settings: joined(results)}}
            torch.save({"result": alone}, buffer)
            with journalled_at(call.artifact), deployment.entry(settings, line, **facts) as entry:
                entry.keep(buffer.getvalue(), job_id=joint.job_id, cost=joint.cost, versions=joint.versions)
