"""What a parameters cell asks for: where its results are, and what they must have been made from.

Without torch, so that asking is quick.
"""

import hashlib
import os
import warnings
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from ..data.datasets import with_levels
from ..data.examples import Example, load_examples
from ..data.pairs import Pair, find_pair
from ..data.prompts import DRAWN, PromptError, load_prompts
from ..data.rows import NAMED_SOURCES
from ..embedded import TOYS, toy_path
from ..models.gguf import WHEELS, gguf_in
from ..params import Params, ParamsError, find_model
from ..params import problems as problems_of
from ..results.provenance import prompts_hash
from ..results.schemas import ARTIFACTS, artifact_path, unknown_probe

_PIECES, _PIECE = 256, 2**18  # places of a weight file that are read, and bytes at each: all of it up to 64 MiB


def in_project(path: str | Path) -> Path:
    """A relative path as seen from the project's root, when the working directory is anywhere inside a clone.

    Jupyter starts a kernel in notebooks/, make and papermill at the root: both find the same outputs/. A path that
    begins with .., or that is there only as seen from the working directory, is taken from there.
    """
    root, here, path = Path(__file__).resolve().parents[2], Path.cwd(), Path(path)
    in_clone = (root / "notebooks").is_dir() and here.is_relative_to(root)
    if not in_clone or here == root:
        return path
    from_here = path.parts[:1] == ("..",) or (path.exists() and not (root / path).exists())
    return Path(os.path.normpath(here / path)) if from_here else root / path


def no_folder(out: str | Path) -> str | None:
    """That a folder of results is a file, or would lie in one; None if it may be a folder."""
    file = next((path for path in (Path(out), *Path(out).parents) if path.is_file()), None)
    within = "" if file == Path(out) else f" lies in {file}, which"
    return f"OUT={out}{within} is a file; name a folder" if file else None


def two_models(asked: Mapping) -> list[str]:
    """That MODEL and MODEL_ID are names of two different models, under one of which the other would be filed."""
    name, model_id = asked["MODEL"], asked["MODEL_ID"]
    if model_id in (None, name) or not isinstance(model_id, str):
        return []
    known, other = find_model(name), find_model(model_id)
    if not known or not other or known["MODEL_ID"] == model_id:
        return []
    return [f"MODEL is {name} and MODEL_ID is {model_id}, which is another model; leave MODEL_ID out or change both"]


def _id_of(model: str) -> str:
    known = find_model(model)
    return known["MODEL_ID"] if known else model


class RunSpec:
    """What a parameters cell asks for: where its results are, and what they must have been made from.

    cell: the names of the cell with their values; other names than those of Params are left out. Raises ParamsError
    with every wrong parameter.
    """

    def __init__(self, cell: Mapping):
        given = {name: cell[name] for name in Params.model_fields if name in cell}
        asked = {name: field.default for name, field in Params.model_fields.items()} | given
        problems = problems_of(asked) + two_models(asked)
        if isinstance(asked.get("PROBES"), list) and (problem := unknown_probe(asked["PROBES"])):
            problems.append(problem)
        elif isinstance(asked.get("PROBES"), list) and asked.get("DATASET") not in with_levels():
            by_level = [probe for probe in asked["PROBES"] if ARTIFACTS[probe].by_level]
            problems += [f"{probe} needs one of the datasets {', '.join(with_levels())}" for probe in by_level]
        try:
            self.pair = None if problems else self._pair(asked)
        except PromptError as problem:
            problems.append(str(problem))
        if problems:
            raise ParamsError("; ".join(problems))
        self.asked = asked | {"MODEL_ID": asked["MODEL_ID"] or _id_of(asked["MODEL"])}
        self.remote, self.dataset, self.source = asked["REMOTE"], asked["DATASET"], asked["SOURCE"]
        self.out = in_project(asked["OUT"])
        if problem := no_folder(self.out):
            raise ParamsError(problem)
        self.paths = {
            probe: artifact_path(self.out, self.dataset, asked["MODEL"], probe, asked["N_EXAMPLES"], self.pair.label)
            for probe in ARTIFACTS
        }

    @staticmethod
    def _pair(asked: Mapping) -> Pair:
        return find_pair(asked["PAIR"], asked["QUESTION"], asked["ANSWER"], asked["SEED"])

    def provenance(self, probe: str) -> dict:
        """What a stored result must have been made from to be the one asked for."""
        by_level = ARTIFACTS[probe].by_level
        prompts = [one.question + one.answer for one in self.examples] if by_level else self.prompts
        return {
            "model": self.asked["MODEL"],
            "model_id": self.asked["MODEL_ID"],
            "revision": self.asked["REVISION"],
            "weights": self._weights,
            "dtype": self.asked["DTYPE"],
            "quantization": self.asked["QUANTIZATION"],
            "dataset": self.dataset,
            "source": "drawn" if self.dataset in DRAWN else self.source,
            "n_prompts": len(prompts),
            "prompts_hash": prompts_hash(prompts),
            "seed": self.asked["SEED"],
            "settings": self._settings(probe),
        } | ({"examples_hash": prompts_hash(self.examples)} if by_level else {})

    @cached_property
    def prompts(self) -> list[str]:
        """The prompts of the run, in order."""
        return self._prompts_of(self.dataset)

    @cached_property
    def examples(self) -> list[Example]:
        """N_EXAMPLES questions of each level of difficulty; PromptError if the dataset has no levels."""
        return load_examples(self.dataset, self.asked["N_EXAMPLES"], self._source, self.asked["SEED"])

    @property
    def reads(self) -> str:
        """What the probes that are asked for read, in words: how many prompts, or questions of which levels."""
        by_level = [ARTIFACTS[probe].by_level for probe in self.asked["PROBES"]]
        said = []
        if not all(by_level):
            said.append(f"{len(self.prompts)} prompts, the first begins {self.prompts[0][:60]!r}")
        if any(by_level):
            levels = [one.level for one in self.examples]
            question = self.examples[0].question[:60]
            between = f"levels {min(levels)} to {max(levels)}, the first begins {question!r}"
            said.append(f"{len(levels)} questions of {between}")
        return "; ".join(said) or "nothing, as PROBES is empty"

    @cached_property
    def baseline(self) -> list[str]:
        """The prompts whose mean residual is uninformative: GSM8K's, on every dataset (Csordás et al. 2025, 3.4)."""
        if self.dataset == "gsm8k":
            return self.prompts
        if self.source not in NAMED_SOURCES:
            raise ParamsError(
                f"residual_erasure takes its baseline from gsm8k, and SOURCE {self.source} is a file of "
                f"{self.dataset}; run it with DATASET gsm8k, or leave it out of PROBES"
            )
        return self._prompts_of("gsm8k")

    def _prompts_of(self, dataset: str) -> list[str]:
        return load_prompts(dataset, self.asked["N_EXAMPLES"], source=self._source, seed=self.asked["SEED"])

    @property
    def _source(self) -> str | Path:
        return self.source if self.source in NAMED_SOURCES else in_project(self.source)

    def _settings(self, probe: str) -> dict:
        settings = dict(ARTIFACTS[probe].settings)
        if ARTIFACTS[probe].of_pair:
            settings |= {"question": self.pair.question, "answer": self.pair.answer}
        return settings | ({"baseline_hash": prompts_hash(self.baseline)} if ARTIFACTS[probe].baseline else {})

    @property
    def _checkpoint(self) -> Path | None:
        """The checkpoint's folder or GGUF file, where the model is not the Hub's nor ours."""
        if self.asked["MODEL_ID"] in (*TOYS, *WHEELS):
            return None
        path = in_project(self.asked["MODEL_ID"])
        return path if path.is_dir() or gguf_in(path) else None

    @cached_property
    def _weights(self) -> str | None:
        """A fingerprint of a checkpoint on this disk, which has no revision: its config and tokenizer, and the name,
        size and 256 spread pieces of each weight file, so that an edited block is seen."""
        if self.asked["MODEL_ID"] in WHEELS:
            return WHEELS[self.asked["MODEL_ID"]].sha256[:16]
        place = toy_path(self.asked["MODEL_ID"]) if self.asked["MODEL_ID"] in TOYS else self._checkpoint
        if place is None:
            return None
        digest = hashlib.sha256()
        kinds, file = ("json", "safetensors", "bin"), gguf_in(place)
        for path in [file] if file else sorted(path for kind in kinds for path in place.glob(f"*.{kind}")):
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            with path.open("rb") as file:
                for start in range(0, size, max(_PIECE, size // _PIECES)):
                    file.seek(start)
                    digest.update(file.read(_PIECE))
        return digest.hexdigest()[:16]


class OfflineSpec(RunSpec):
    """The same, as far as it is known without the network: the Hub's prompts are not fetched, nor compared."""

    def provenance(self, probe: str) -> dict:
        """What is known of it: without the number and hash of prompts where they are the Hub's."""
        if self.source != "hub" or self.dataset in DRAWN:
            return super().provenance(probe)
        with warnings.catch_warnings(action="ignore"):  # that the embedded sample is smaller
            known = self.__class__(self.asked | {"SOURCE": "embedded"}).provenance(probe)
        for key in ("n_prompts", "prompts_hash", "examples_hash"):
            known.pop(key, None)
        known["settings"].pop("baseline_hash", None)
        return known | {"source": "hub"}
