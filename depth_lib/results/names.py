"""Where a probe's result lives, and the command that makes it: names only, so that it is known without torch."""

import re
from pathlib import Path

from .schemas import ARTIFACTS


class ArtifactError(Exception):
    """A probe's result that cannot be written or read; the message names the file and the next step."""


class MissingArtifact(ArtifactError, FileNotFoundError):
    """A probe's result that is not there yet; the message holds the command that makes it."""


def artifact_path(out: str | Path, dataset: str, model: str, probe: str, n_examples: int) -> Path:
    """Where a probe's result lives: `out/dataset/model/file`. ArtifactError if probe is not one of ARTIFACTS."""
    if probe not in ARTIFACTS:
        raise ArtifactError(f"no probe is called {probe!r}; the probes are {', '.join(ARTIFACTS)}")
    for name in (dataset, model):
        if name in ("", ".", "..") or Path(name).name != name:
            raise ArtifactError(f"{name!r} cannot be a folder under {out}; use a short name such as Qwen2.5-7B")
    return Path(out) / dataset / model / ARTIFACTS[probe].file.format(n=n_examples)


def probe_of(path: str | Path) -> tuple[str, int | None]:
    """The probe a file name belongs to and its number of examples; ArtifactError if it is no probe's file."""
    for probe, schema in ARTIFACTS.items():
        match = re.fullmatch(re.escape(schema.file).replace(r"\{n\}", r"(\d+)"), Path(path).name)
        if match:
            return probe, int(match[1]) if match.groups() else None
    names = ", ".join(schema.file for schema in ARTIFACTS.values())
    raise ArtifactError(f"{path} is not the name of an artifact; the names are {names}")


def sweep_command(run: str | Path) -> str:
    """The make command that computes the results of one folder `out/dataset/model`."""
    model, dataset, out = Path(run).name, Path(run).parent.name, Path(run).parent.parent
    command = f"make sweep MODELS={model} DATASETS={dataset}"
    return command if out.name in ("", "outputs") else f"{command} OUT={out}"
