"""One run, a model × a dataset: each probe's result is read where it is there and matches, computed where it is not."""

import contextlib
import datetime
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial

import nnsight
import torch

from .. import api
from ..api import depth_by_difficulty
from ..embedded import TOYS
from ..files import COMPUTING, hold, remove_leftovers
from ..models import check
from ..models.gguf import WHEELS
from ..models.load import load_model
from ..models.memory import check_fits
from ..models.parallel import agreed_by_ranks, is_first, join_ranks
from ..remote import journalled
from ..results.artifacts import load_artifact, save_artifact
from ..results.provenance import NONE_YET, why_stale
from ..results.schemas import ARTIFACTS, ArtifactError
from .spec import RunSpec, in_project

__all__ = ["Run", "in_project"]


class Run(RunSpec):
    """What a parameters cell asks for, as in `Run(globals())`, read or computed.

    With TENSOR_PARALLEL this process is one of so many ranks that make the same calls: rank 0 decides what is computed,
    keeps locks and writes results.

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
        """The probe's result as `load_artifact` gives it; None if PROBES leaves it out. Says which of the two it did.

        call: computes it from the model; unless given, the probe's own function with the settings of its artifact.
        settings: what a call of one's own measures otherwise, which a kept result must have been made with.

        A file that is there but was made from something else is stale: what differs is printed, and it is computed
        again. Raises what the model, the prompts, the probe or the disk raise.
        """
        if probe not in self.asked["PROBES"]:
            print(f"{probe}: left out (PROBES = {', '.join(self.asked['PROBES'])})")
            return None
        path = self.paths[probe]
        if agreed_by_ranks(self._reasons(probe, settings)):
            with self._alone(probe) if is_first() else contextlib.nullcontext():
                # whoever had the lock may have computed it
                if reasons := agreed_by_ranks(self._reasons(probe, settings) if is_first() else None):
                    self._write(probe, reasons, call, settings)
                    agreed_by_ranks("written")
                    return load_artifact(path)
        if path.with_name(f"{path.name}.job").exists():  # killed after the result was written, before its jobs went
            with self._alone(probe), journalled(path):
                pass
        print(f"{probe}: read from {path}, nothing to compute")
        return load_artifact(path)

    @cached_property
    def llm(self) -> nnsight.TransformersModel:
        """The model, loaded on first use."""
        print(f"loading {self.asked['MODEL_ID']}")
        source = str(self.checkpoint or self.asked["MODEL_ID"])
        how = {key.lower(): self.asked[key] for key in ("REVISION", "DTYPE", "QUANTIZATION", "DEVICE_MAP")}
        n_ranks = self.asked["TENSOR_PARALLEL"]
        if n_ranks > 1 and how["device_map"] == "auto":
            how["device_map"] = None  # the params files' word for one process; here each rank has a GPU of its own
        if self.remote in (False, "local") and source not in (*TOYS, *WHEELS):
            check_fits(source, n_ranks=n_ranks, **how)
        return load_model(source, remote=self.remote, tensor_parallel=n_ranks, **how)

    def _reasons(self, probe: str, settings: Mapping) -> list[str]:
        """Why a result has to be computed; [] if it is there and matches."""
        return why_stale(self.paths[probe], self._made_from(probe, settings))

    def _made_from(self, probe: str, settings: Mapping) -> dict:
        provenance = self.provenance(probe)
        return provenance | {"settings": provenance["settings"] | settings}

    @contextlib.contextmanager
    def _alone(self, probe: str) -> Iterator[None]:
        """The lock of the run's folder: two notebooks never compute one result, nor send one job, at the same time."""
        with contextlib.ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                waiting = f"{probe}: waiting, as a result beside it is being computed"
                lock = hold(self.folder / COMPUTING, say=lambda who: print(f"{waiting} ({who})"), doing=probe)
                stack.enter_context(lock)
                remove_leftovers(self.folder)
            except OSError as error:
                raise ArtifactError(
                    f"{self.folder} cannot be written ({error.strerror}); free the disk or choose another OUT, then "
                    "run again"
                ) from error
            yield

    def _write(self, probe: str, reasons: list[str], call: Callable | None, settings: Mapping) -> None:
        path = self.paths[probe]
        if reasons != [NONE_YET]:
            print(f"{probe}: {path} is stale, computing it again", *reasons, sep="\n  ")
        llm = self.llm  # loading is not the probe's time
        # a remote job that outlives this process is found again beside the result
        with journalled(path) as jobs, self._warnings_named():
            start = time.perf_counter()
            result = call(llm) if call else {k: v for one in self._calls(probe, llm) for k, v in one().items()}
            seconds = round(time.perf_counter() - start, 3)
            about = self._made_from(probe, settings) | self._circumstances() | {"seconds": seconds}
            if not is_first():
                return
            save_artifact(path, result, about | ({"jobs": jobs} if jobs else {}))
        print(f"{probe}: computed in {seconds:.1f} s, written to {path}")

    def _calls(self, probe: str, llm: nnsight.TransformersModel) -> list[Callable[[], dict]]:
        """What the probe's result is made of: effects have one call for each mode."""
        row = ARTIFACTS[probe]
        how = {"remote": self.remote} | {key: value for key, value in row.settings.items() if key != "tolerance"}
        if row.of_pair:
            how |= {"question": self.pair.question, "answer": self.pair.answer}
        if row.baseline:
            how["baseline_prompts"] = self.baseline
        if row.by_level:
            return [partial(depth_by_difficulty, llm, self.examples, **how)]
        if not row.of_pair:
            how["prompts"] = self.prompts
        function = partial(getattr(api, row.function or probe), llm)
        return [partial(function, mode=mode, **how) for mode in how.pop("modes", ())] or [partial(function, **how)]

    @contextlib.contextmanager
    def _warnings_named(self) -> Iterator[None]:
        """Our warnings begin with dataset and model, and what two probes warn of is said once."""
        show = warnings.showwarning

        def show_named(message: Warning | str, category: type[Warning], *where: object) -> None:
            named = f"{self.name}: {message}" if category is UserWarning else message
            if str(named) not in self._warned:
                self._warned.add(str(named))
                show(named, category, *where)

        with warnings.catch_warnings():
            warnings.showwarning = show_named
            yield

    @cached_property
    def _warned(self) -> set[str]:
        return set()

    def _circumstances(self) -> dict:
        """What is worth knowing of a result, but does not make it another one."""
        return {
            "commit": getattr(self.llm.config, "_commit_hash", None),
            "check": check.CHECKED.get(self.llm),
            "runs": check.RUNNING.get(self.llm),
            "where": self._where(),
            "remote": self.remote,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }

    def _where(self) -> str:
        if self.remote is True:
            return f"NDIF {nnsight.CONFIG.API.HOST}"
        if self.remote not in (False, "local"):
            return f"NDIF {self.remote}"
        device = next(self.llm._module.parameters()).device
        return f"local {torch.cuda.get_device_name(device) if device.type == 'cuda' else device}"
