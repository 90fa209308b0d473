"""One run, a model on a dataset: each probe's result is read if it is there and up to date, otherwise computed."""

import contextlib
import datetime
import inspect
import json
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property

import nnsight
import torch

from .. import api
from ..embedded import TOYS
from ..files import COMPUTING, hold, move_aside, remove_leftovers
from ..models.bos import begins_with_bos
from ..models.families import known, remark
from ..models.gguf import WHEELS
from ..models.known_mistakes import mistake_in
from ..models.load import load_model
from ..models.memory import check_fits
from ..models.parallel import is_first, join_ranks
from ..params import LOADING, NOT_COMPARED
from ..probes.ranks import from_rank_0
from ..progress import LOG
from ..remote import journalled
from ..remote.errors import NotReady, ServerUnreachable
from ..remote.server import host_of
from ..results.artifacts import load_artifact, save_artifact
from ..results.provenance import NONE_YET, differences, prompts_hash, why_stale, without_places
from ..results.schemas import ARTIFACTS, ArtifactError, parse_name
from .spec import RunSpec
from .status import PROBE_FAILED


class Run(RunSpec):
    """The results that a parameters cell asks for, read or computed: `Run(globals())`.

    A parameter that is None in the cell is taken from the params files, and printed; "null" stands for None.

    With TENSOR_PARALLEL this process is one of several ranks that make the same calls; rank 0 decides what is computed,
    takes the lock and writes the results.

    The model is loaded once, when the first probe has to be computed. Raises ParamsError with every wrong parameter.
    """

    def __init__(self, cell: Mapping, prompts: Iterable[str] | None = None):
        super().__init__(cell, prompts)
        join_ranks(self.params["TENSOR_PARALLEL"])
        for origin, values in self.origins.items():
            if values and is_first():
                print(f"{origin}: {' '.join(f'{name}={json.dumps(value)}' for name, value in values.items())}")

    def result(
        self, probe: str, call: Callable[[nnsight.TransformersModel], dict] | None = None, **settings: object
    ) -> dict | None:
        """The probe's result as `load_artifact` gives it, read or computed; None if it is not in PROBES.

        call: computes the result from the model; by default the probe's own function with the settings of its artifact.
        settings: what your call does differently; a kept result must have been made with the same settings.

        A result with other settings, prompts or weights is not replaced: raises Superseded with the differences. With
        REPLACE it is moved aside, and computed again. Raises what the model, the prompts, the probe or the disk raise.
        """
        if probe not in self.params["PROBES"]:
            print(f"{probe}: left out (PROBES = {', '.join(self.params['PROBES'])})")
            return None
        wanted = self.provenance(probe)
        wanted["settings"] |= json.loads(json.dumps(settings))  # as they are kept
        if from_rank_0(why_stale(self.path(probe), wanted, exact=True)):
            with self._alone():
                self.refuse_to_replace(probe, wanted, "set REPLACE = True, and make a new Run", exact=True)
                # another process may have computed it before it released the lock
                if reasons := from_rank_0(why_stale(self.path(probe), wanted, exact=True)):
                    if not self._compute(probe, reasons, call, wanted):
                        return None
                    from_rank_0("written")
                    return load_artifact(self.new_path(probe))
        result = load_artifact(self.path(probe))
        print(f"{probe}: read from {self.path(probe)}, nothing to compute")
        if source_of(call) != result["meta"].get("call", source_of(call)):
            print(
                f"  It was computed by a call that was written differently. If yours measures something else, name the "
                f'difference, as in run.result("{probe}", call, part="mlp"), and set REPLACE = True in the parameters.'
            )
        return result

    @cached_property
    def llm(self) -> nnsight.TransformersModel:
        """The model, loaded on first use."""
        print(f"loading {self.params['MODEL_ID']}")
        source = str(self.checkpoint or self.params["MODEL_ID"])
        how = {key.lower(): self.params[key] for key in LOADING}
        n_ranks = self.params["TENSOR_PARALLEL"]
        if n_ranks > 1 and how["device_map"] == "auto":
            how["device_map"] = None  # "auto" is for one process; here each rank has its own GPU
        if not self.on_server and source not in (*TOYS, *WHEELS):
            check_fits(source, n_ranks=n_ranks, **how)
        return load_model(source, remote=self.remote, tensor_parallel=n_ranks, **how)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock of the run's folder, so that no two notebooks compute the same result or send the same job."""
        if not is_first():  # the first rank holds it for all
            yield
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with hold(self.folder / COMPUTING):
            remove_leftovers(self.folder)
            yield

    def _compute(self, probe: str, reasons: list[str], call: Callable | None, wanted: Mapping) -> bool:
        """Compute and save a result. In a sweep, an error is printed and the other probes go on; then False."""
        path = self.new_path(probe)
        if reasons != [NONE_YET]:
            print(f"{probe}: {self.path(probe)} is stale, computing it again", *reasons, sep="\n  ")
        llm = self.llm  # loading is not the probe's time
        # the journal beside the result finds a remote job again that outlives this process
        with journalled(path) as jobs:
            start = time.perf_counter()
            try:
                result = call(llm) if call else self._measure(probe, llm)
            except Exception as error:
                of_all = isinstance(error, (NotReady, ServerUnreachable)) or self.params["TENSOR_PARALLEL"] > 1
                if of_all or LOG not in os.environ:  # no sweep: its caller sees it
                    raise
                traceback.print_exc()
                print(f"{PROBE_FAILED}{probe}: {type(error).__name__}: {str(error).strip().splitlines()[0]}")
                return False
            seconds = round(time.perf_counter() - start, 3)
            if not is_first():
                return True
            meta = self._meta(probe, wanted) | {"seconds": seconds, "call": source_of(call)}
            if jobs:
                meta["jobs"] = jobs
            if "igrads" in result:  # a server's sandbox has no gradients
                meta["method"] = "increments" if "n_steps" in result else "gradients"
            self._move_aside_superseded(probe, wanted)
            save_artifact(path, result, meta)
        print(f"{probe}: computed in {seconds:.1f} s, written to {path}")
        return True

    def _move_aside_superseded(self, probe: str, wanted: Mapping) -> None:
        path = self.path(probe)
        with contextlib.suppress(ArtifactError):  # `save_artifact` keeps what cannot be read
            if differences(path, wanted, exact=True):
                _, n, pair = parse_name(path)
                for name in ARTIFACTS[probe].names(n or "", pair):
                    if name and (old := path.with_name(name)).exists():
                        print(f"{probe}: {old} is kept as {move_aside(old, 'superseded').name}")

    def _measure(self, probe: str, llm: nnsight.TransformersModel) -> dict:
        """Call the probe's own function with the settings of its artifact; layer effects in both modes."""
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

    def _meta(self, probe: str, wanted: Mapping) -> dict:
        """The provenance of a result that was just computed: all parameters, and what ran where."""
        row, record = ARTIFACTS[probe], known(self.llm)
        meta = {name.lower(): value for name, value in self.params.items() if name not in NOT_COMPARED}
        meta |= without_places(meta) | {"dataset": self.dataset}
        if self.source in ("drawn", "list"):
            meta["source"] = self.source
        if self.dataset != self.params["DATASET"]:
            meta["rows_of"] = self.params["DATASET"]
        meta |= wanted
        meta |= {
            "commit": getattr(self.llm.config, "_commit_hash", None) or self.commit,
            "check": record.checked,
            "runs": record.running,
            "blocks": remark(self.llm),
            "mistake": "" if self.on_server else mistake_in(self.llm.config),
            "bos": begins_with_bos(self.llm.tokenizer),
            "where": self._where(),
            "remote": self.remote,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        if self.on_server and record.running:
            meta["dtype"] = record.running["dtype"]
            meta["quantization"] = self.params["QUANTIZATION"] if record.running["quantized"] else None
        if row.reads_prompts:
            prompts = self.baseline if row.baseline else self.examples if row.by_level else self.prompts
            meta |= {"n_prompts": len(prompts), "prompts_hash": prompts_hash(prompts)}
        return meta

    def _where(self) -> str:
        if self.on_server:
            return f"NDIF {host_of(self.remote)}"
        device = next(self.llm._module.parameters()).device
        return f"local {torch.cuda.get_device_name(device) if device.type == 'cuda' else device}"


def source_of(call: Callable | None) -> str | None:
    """A hash of the source code of a call; None if there is no call, or its code is not known."""
    try:
        return prompts_hash([inspect.getsource(call)])
    except (TypeError, OSError):
        return None
