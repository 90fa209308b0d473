"""One run, a model × a dataset: each probe's result is read where it is there and matches, computed where it is not."""

import contextlib
import datetime
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

import nnsight
import torch

from .. import api
from ..embedded import TOYS
from ..files import COMPUTING, hold, remove_leftovers
from ..models import check
from ..models.families import remark
from ..models.gguf import WHEELS
from ..models.load import load_model
from ..models.memory import check_fits
from ..models.parallel import is_first, join_ranks
from ..params import LOADING
from ..probes.residual_stream import agreed
from ..remote import journalled
from ..remote.backend import host_of
from ..results.artifacts import load_artifact, save_artifact
from ..results.provenance import NONE_YET, why_stale
from ..results.schemas import ARTIFACTS
from .spec import RunSpec


class Run(RunSpec):
    """What a parameters cell asks for, as in `Run(globals())`, read or computed.

    With TENSOR_PARALLEL this process is one of several ranks that make the same calls: rank 0 decides what is computed,
    holds the lock and writes results.

    The model is loaded when the first probe has to be computed, and once. Raises ParamsError with every wrong
    parameter.
    """

    def __init__(self, cell: Mapping, prompts: Iterable[str] | None = None):
        super().__init__(cell)
        if prompts is not None:
            self.prompts = list(prompts)  # in place of those that DATASET and SOURCE name
        join_ranks(self.asked["TENSOR_PARALLEL"])

    def result(
        self, probe: str, call: Callable[[nnsight.TransformersModel], dict] | None = None, **settings: object
    ) -> dict | None:
        """The probe's result as `load_artifact` gives it, read or computed, which is printed; None if PROBES lacks it.

        call: computes it from the model; unless given, the probe's own function with the settings of its artifact.
        settings: what a call of one's own does differently; a kept result must have been made with the same.

        A file that was made from something else is stale: what differs is printed, and it is computed again. Raises
        what the model, the prompts, the probe or the disk raise.
        """
        if probe not in self.asked["PROBES"]:
            print(f"{probe}: left out (PROBES = {', '.join(self.asked['PROBES'])})")
            return None
        wanted = self.provenance(probe)
        wanted["settings"] |= settings
        path = self.path(probe)
        if agreed(why_stale(path, wanted)):
            with self._alone() if is_first() else contextlib.nullcontext():
                # whoever had the lock may have computed it
                if reasons := agreed(why_stale(path, wanted)):
                    self._compute(probe, path, reasons, call, wanted)
                    agreed("written")
                    return load_artifact(path)
        print(f"{probe}: read from {path}, nothing to compute")
        return load_artifact(path)

    @cached_property
    def llm(self) -> nnsight.TransformersModel:
        """The model, loaded on first use."""
        print(f"loading {self.asked['MODEL_ID']}")
        source = str(self.checkpoint or self.asked["MODEL_ID"])
        how = {key.lower(): self.asked[key] for key in LOADING}
        n_ranks = self.asked["TENSOR_PARALLEL"]
        if n_ranks > 1 and how["device_map"] == "auto":
            how["device_map"] = None  # the params files' word for one process; here each rank has a GPU of its own
        if self.remote in (False, "local") and source not in (*TOYS, *WHEELS):
            check_fits(source, n_ranks=n_ranks, **how)
        return load_model(source, remote=self.remote, tensor_parallel=n_ranks, **how)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """The lock of the run's folder: two notebooks never compute one result, nor send one job, at the same time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with hold(self.folder / COMPUTING):
            remove_leftovers(self.folder)
            yield

    def _compute(self, probe: str, path: Path, reasons: list[str], call: Callable | None, wanted: Mapping) -> None:
        if reasons != [NONE_YET]:
            print(f"{probe}: {path} is stale, computing it again", *reasons, sep="\n  ")
        llm = self.llm  # loading is not the probe's time
        # a remote job that outlives this process is found again beside the result
        with journalled(path) as jobs:
            start = time.perf_counter()
            result = call(llm) if call else self._measure(probe, llm)
            seconds = round(time.perf_counter() - start, 3)
            if not is_first():
                return
            meta = wanted | self._circumstances() | {"seconds": seconds} | ({"jobs": jobs} if jobs else {})
            save_artifact(path, result, meta)
        print(f"{probe}: computed in {seconds:.1f} s, written to {path}")

    def _measure(self, probe: str, llm: nnsight.TransformersModel) -> dict:
        """The probe itself, with the settings of its artifact; effects of skips are measured in two modes."""
        row, how = ARTIFACTS[probe], {"remote": self.remote, **self.settings(probe)}
        function, modes = getattr(api, row.function or probe), how.pop("modes", None)
        how.pop("tolerance", None)  # the function's own
        if row.by_level:
            how["examples"] = self.examples
        elif not row.of_pair:
            how["prompts"] = self.prompts
        if row.baseline:
            how["baseline_prompts"] = self.baseline
        if not modes:
            return function(llm, **how)
        return {key: value for mode in modes for key, value in function(llm, mode=mode, **how).items()}

    def _circumstances(self) -> dict:
        """What is worth knowing of a result, but does not make it stale."""
        return {
            "commit": getattr(self.llm.config, "_commit_hash", None),
            "check": check.CHECKED.get(self.llm),
            "runs": check.RUNNING.get(self.llm),
            "blocks": remark(self.llm),
            "where": self._where(),
            "remote": self.remote,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }

    def _where(self) -> str:
        if self.remote not in (False, "local"):
            return f"NDIF {host_of(self.remote)}"
        device = next(self.llm._module.parameters()).device
        return f"local {torch.cuda.get_device_name(device) if device.type == 'cuda' else device}"
