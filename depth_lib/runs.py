"""One run, a model × a dataset: each probe's result is read where it is there and matches, computed where it is not."""

import datetime
import hashlib
import re
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import nnsight
import torch

from depth_lib import api, check
from depth_lib.artifacts import artifact_path, differences, load_artifact, prompts_hash, save_artifact
from depth_lib.embedded import TOYS, toy_path
from depth_lib.models import load_model
from depth_lib.params import PARAMETERS, ParamsError, _problem
from depth_lib.prompts import ANSWER, DRAWN, QUESTION, load_prompts
from depth_lib.remote import beside
from depth_lib.schemas import ARTIFACTS

_PIECE = 2**20  # bytes of a weight file that tell checkpoints apart: a training step changes nearly every weight


def in_project(path: str | Path) -> Path:
    """A relative path as seen from the project's root, when the working directory is anywhere inside a clone.

    Jupyter starts a kernel in notebooks/, make and papermill at the root: both find the same outputs/.
    """
    root, here = Path(__file__).resolve().parent.parent, Path.cwd()
    in_clone = (root / "notebooks").is_dir() and here.is_relative_to(root)
    return root / path if in_clone and here != root else Path(path)


class Run:
    """What a parameters cell asks for. The model is loaded when the first probe has to be computed, and once.

    cell: the names of the cell with their values, as in `Run(globals())`; names that are not all capitals are left
    out. Raises ParamsError with every unknown, missing or wrong parameter.
    """

    def __init__(self, cell: Mapping):
        asked = {name: value for name, value in cell.items() if re.fullmatch(r"[A-Z][A-Z_]+", name)}
        problems = [problem for name, value in asked.items() if (problem := _problem(name, value))]
        problems += [f"{name} is missing; set it in the parameters cell" for name in PARAMETERS if name not in asked]
        if problems:
            raise ParamsError("; ".join(problems))
        self.asked = asked
        self.remote, self.dataset, self.source = asked["REMOTE"], asked["DATASET"], asked["SOURCE"]
        self.out = in_project(asked["OUT"])
        self.paths = {probe: artifact_path(self.out, self.dataset, asked["MODEL"], probe, asked["N_EXAMPLES"])
                      for probe in ARTIFACTS}

    def result(self, probe: str) -> dict | None:
        """The probe's result as `load_artifact` gives it; None if PROBES leaves it out. Says which of the two it did.

        A file that is there but was made from something else is stale: what differs is printed, and it is computed
        again. Raises what the model, the prompts, the probe or the disk raise.
        """
        if probe not in self.asked["PROBES"]:
            print(f"{probe}: left out (PROBES = {', '.join(self.asked['PROBES'])})")
            return None
        path, wanted = self.paths[probe], self.provenance(probe)
        reasons = differences(path, wanted) if path.exists() else ["there is none yet"]
        if not reasons:
            print(f"{probe}: read from {path}, nothing to compute")
            return load_artifact(path)
        if reasons != ["there is none yet"]:
            print(f"{probe}: {path} is stale, computing it again", *reasons, sep="\n  ")
        llm = self.llm  # loading is not the probe's time
        with beside(path):  # a remote job that outlives this process is found again there
            start = time.perf_counter()
            result = self._compute(probe, llm)
            seconds = round(time.perf_counter() - start, 3)
            save_artifact(path, result, wanted | self._circumstances() | {"seconds": seconds})
        print(f"{probe}: computed in {seconds:.1f} s, written to {path}")
        return load_artifact(path)

    def provenance(self, probe: str) -> dict:
        """What a stored result must have been made from to be the one asked for."""
        return {
            "model": self.asked["MODEL"],
            "model_id": self.asked["MODEL_ID"],
            "revision": self.asked["REVISION"],
            "weights": self._weights,
            "dtype": self.asked["DTYPE"],
            "quantization": self.asked["QUANTIZATION"],
            "dataset": self.dataset,
            "source": "drawn" if self.dataset in DRAWN else self.source,
            "n_prompts": len(self.prompts),
            "prompts_hash": prompts_hash(self.prompts),
            "seed": self.asked["SEED"],
            "settings": self._settings(probe),
        }

    @cached_property
    def llm(self):
        """The model, loaded on first use."""
        print(f"loading {self.asked['MODEL_ID']}")
        return load_model(
            str(self._folder or self.asked["MODEL_ID"]), remote=self.remote, revision=self.asked["REVISION"],
            dtype=self.asked["DTYPE"], quantization=self.asked["QUANTIZATION"], device_map=self.asked["DEVICE_MAP"],
        )  # fmt: skip

    @cached_property
    def prompts(self) -> list[str]:
        """The prompts of the run, in order."""
        return self._prompts_of(self.dataset)

    @cached_property
    def baseline(self) -> list[str]:
        """The prompts whose mean residual is uninformative: GSM8K's, on every dataset (Csordás et al. 2025, 3.4)."""
        if self.dataset == "gsm8k":
            return self.prompts
        if self.source not in ("hub", "embedded"):
            raise ParamsError(f"residual_erasure takes its baseline from gsm8k, and SOURCE {self.source} is a file of "
                              f"{self.dataset}; run it with DATASET gsm8k, or leave it out of PROBES")
        return self._prompts_of("gsm8k")

    def _prompts_of(self, dataset: str) -> list[str]:
        source = self.source if self.source in ("hub", "embedded") else in_project(self.source)
        return load_prompts(dataset, self.asked["N_EXAMPLES"], source=source, seed=self.asked["SEED"])

    def _compute(self, probe: str, llm) -> dict:
        if probe == "layer_effects":
            return {key: tensor for mode in self._settings(probe)["modes"]
                    for key, tensor in api.layer_effects(llm, self.prompts, mode=mode, remote=self.remote).items()}
        if probe == "residual_erasure":
            return api.residual_erasure(llm, QUESTION, ANSWER, self.baseline, remote=self.remote)
        if probe == "integrated_gradients":
            return api.integrated_gradients(llm, **self._settings(probe), remote=self.remote)
        return getattr(api, probe)(llm, self.prompts, remote=self.remote)

    def _settings(self, probe: str) -> dict:
        if probe == "layer_effects":
            return {"modes": ["future", "all"]}
        if probe == "residual_erasure":
            return {"question": QUESTION, "answer": ANSWER, "baseline_hash": prompts_hash(self.baseline)}
        if probe == "integrated_gradients":
            return {"question": QUESTION, "answer": ANSWER, "quadrature": "gauss", "tolerance": 1e-3}
        return {}

    @property
    def _folder(self) -> Path | None:
        """The checkpoint's folder, where the model is not the Hub's."""
        if self.asked["MODEL_ID"] in TOYS:
            return None
        folder = in_project(self.asked["MODEL_ID"])
        return folder if folder.is_dir() else None

    @cached_property
    def _weights(self) -> str | None:
        """A fingerprint of a checkpoint in a folder, which has no revision: its files' names, sizes and last MiB."""
        folder = toy_path(self.asked["MODEL_ID"]) if self.asked["MODEL_ID"] in TOYS else self._folder
        if folder is None:
            return None
        digest = hashlib.sha256()
        for path in sorted(path for ending in ("safetensors", "bin") for path in folder.glob(f"*.{ending}")):
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            with path.open("rb") as file:
                file.seek(max(0, size - _PIECE))
                digest.update(file.read())
        return digest.hexdigest()[:16]

    def _circumstances(self) -> dict:
        """What is worth knowing of a result, but does not make it another one."""
        commit = getattr(self.llm.config, "_commit_hash", None)
        return {"commit": commit, "check": check._CHECKED.get(self.llm), "where": self._where(), "remote": self.remote,
                "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")}

    def _where(self) -> str:
        if self.remote is True:
            return f"NDIF {nnsight.CONFIG.API.HOST}"
        if self.remote not in (False, "local"):
            return f"NDIF {self.remote}"
        device = next(self.llm._module.parameters()).device
        return f"local {torch.cuda.get_device_name(device) if device.type == 'cuda' else device}"
