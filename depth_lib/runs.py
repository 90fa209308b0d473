"""One run, a model × a dataset: each probe's result is read where it is there and matches, computed where it is not."""

import datetime
import time
from functools import cached_property

import nnsight
import torch

from depth_lib import api, check
from depth_lib.artifacts import differences, load_artifact, save_artifact
from depth_lib.models import load_model
from depth_lib.prompts import ANSWER, QUESTION
from depth_lib.provenance import Asked, in_project
from depth_lib.remote import beside

__all__ = ["Run", "in_project"]


class Run(Asked):
    """What a parameters cell asks for, as in `Run(globals())`, read or computed.

    The model is loaded when the first probe has to be computed, and once. Raises ParamsError with every unknown,
    missing or wrong parameter.
    """

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

    @cached_property
    def llm(self):
        """The model, loaded on first use."""
        print(f"loading {self.asked['MODEL_ID']}")
        return load_model(
            str(self._folder or self.asked["MODEL_ID"]), remote=self.remote, revision=self.asked["REVISION"],
            dtype=self.asked["DTYPE"], quantization=self.asked["QUANTIZATION"], device_map=self.asked["DEVICE_MAP"],
        )  # fmt: skip

    def _compute(self, probe: str, llm) -> dict:
        if probe == "layer_effects":
            return {key: tensor for mode in self._settings(probe)["modes"]
                    for key, tensor in api.layer_effects(llm, self.prompts, mode=mode, remote=self.remote).items()}
        if probe == "residual_erasure":
            return api.residual_erasure(llm, QUESTION, ANSWER, self.baseline, remote=self.remote)
        if probe == "integrated_gradients":
            return api.integrated_gradients(llm, **self._settings(probe), remote=self.remote)
        return getattr(api, probe)(llm, self.prompts, remote=self.remote)

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
