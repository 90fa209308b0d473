"""The run of a notebook: each probe's result is read if it is the one asked for, otherwise computed and kept.

`RunSpec` (results/asked.py) says what is asked and whether it is there; `Run` adds the model, the lock of the run's
folder, the journal of jobs on a server, and what a new result's `meta` says of where it was made.
"""

import contextlib
import datetime
import hashlib
import inspect
import json
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

import nnsight
import torch

import depth_lib

from ..depths import untrained
from ..embedded import TOYS
from ..files import COMPUTING, hold, move_aside, remove_leftovers
from ..hub import cached_commit
from ..models.bos import begins_with_bos
from ..models.errors import ModelError
from ..models.families import known, remark
from ..models.gguf import WHEELS
from ..models.load import load_model
from ..models.memory import check_fits
from ..models.parallel import is_first, join_ranks
from ..params import FIVE_PROBES, ParamsError, find_model, flagged
from ..progress import LOG
from ..remote import journalled
from ..remote.errors import NotReady, ServerUnreachable
from ..remote.server import host_of
from ..residual.ranks import from_rank_0
from ..results.artifacts import load_artifact, save_artifact
from ..results.asked import RunSpec
from ..results.provenance import State, prompts_hash, superseded, without_folders
from ..results.schemas import ARTIFACTS, BY_RANDOM, RANDOM, ArtifactError, parse_name
from .status import PROBE_FAILED
from .table import depths_of


class Run(RunSpec):
    """The results that a parameters cell asks for, read or computed: `Run(globals())`.

    A parameter that is None in the cell is taken from the params files, and printed; "null" stands for None.

    prompts: a list of your own. model: one of `dl.load_model`, in memory, instead of MODEL_ID; its results are filed
    under MODEL, or under own- and a hash of its weights if MODEL is the name of a params file.

    With TENSOR_PARALLEL this process is one of several ranks that make the same calls; rank 0 decides what is computed,
    takes the lock and writes the results.

    The model is loaded once, when the first probe has to be computed. Raises ParamsError with every wrong parameter.
    """

    def __init__(
        self, cell: Mapping, prompts: Iterable[str] | None = None, model: nnsight.TransformersModel | None = None
    ):
        if model is not None:  # before RunSpec, whose own weights these replace
            self.llm = model
            self.weights = {"weights": _hash_of_weights(model)}
            cell = {**cell, **_in_memory(model, cell.get("MODEL"), self.weights["weights"])}
        super().__init__(cell, prompts)
        self._shown = set()  # paths of the results that `result` returned
        join_ranks(self.params["TENSOR_PARALLEL"])
        for origin, values in self.origins.items():
            if values and is_first():
                print(f"{origin}: {' '.join(f'{name}={json.dumps(value)}' for name, value in values.items())}")

    def result(
        self, probe: str, call: Callable[[nnsight.TransformersModel], dict] | None = None, **changed: object
    ) -> dict | None:
        """The probe's result as `load_artifact` gives it, read or computed; None if PROBES leaves it out and none is
        kept, if the kept one cannot be read, or if it failed in a sweep.

        call: computes the result from the model; by default the probe's own function with the settings of its artifact.
        changed: what your call does differently, such as part="mlp"; its result has a name of its own.

        A result with other settings, prompts or weights is not replaced: raises Superseded with the differences. With
        REPLACE it is moved aside, and computed again. Raises what the model, the prompts, the probe or the disk raise;
        in a sweep an error of one probe is printed, and the others go on.
        """
        state = from_rank_0(self.state(probe, **changed))
        is_asked = probe in self.params["PROBES"]
        if state.word == "missing" and not is_asked:
            print(f"{probe}: left out (PROBES = {', '.join(self.params['PROBES'])})")
            return None
        if state.word != "done" and is_asked:
            try:
                with self._alone():
                    state = from_rank_0(self.state(probe, **changed))
                    if state.word != "done":  # nor did another process compute it before it released the lock
                        return self._computed(probe, call, changed, state)
            except Exception as error:
                concerns_all = isinstance(error, (ModelError, NotReady, ServerUnreachable))
                its_caller_sees_it = LOG not in os.environ  # not a sweep's
                if concerns_all or its_caller_sees_it or self.params["TENSOR_PARALLEL"] > 1:
                    raise
                traceback.print_exc()
                why = f"{type(error).__name__}: {error}".strip().splitlines()[0]
                print(f"{PROBE_FAILED}{probe}: {why}")
                return None
        result = self._read(probe, state.path, ", nothing to compute" if state.word == "done" else f", {state}")
        if source_of(call) != state.meta.get("call", source_of(call)):
            print(
                f"  It was computed by a call that was written differently. If yours measures something else, "
                f'name what, as in run.result("{probe}", call, part="mlp"): its result is kept beside this one.'
            )
        return result

    def others(self) -> Iterator[tuple[str, dict]]:
        """Pairs of probe and result: further probes that PROBES names, the logit lens by LENS, then all that is kept in
        the run's folder and was not returned before, such as results of another question.

        Results with random weights are computed and not returned: `depths` has their depths.
        """
        for name, (probe, changed) in self.asked.items():
            if name not in FIVE_PROBES and (result := self.result(probe, **changed)) and changed != RANDOM:
                yield probe, result
        for path in sorted({*self.folder.glob("*.pt")} - {*self.folder.glob(f"*{BY_RANDOM}.pt")} - self._shown):
            with contextlib.suppress(ArtifactError):  # somebody else's file
                name = parse_name(path)
                if result := self._read(name.key, path):
                    yield name.probe, result

    def depths(self) -> list[str]:
        """The run's effective depths in words, of results that were made as this run asks."""
        return depths_of(self)

    def _read(self, name: str, path: Path, remark: str = "") -> dict | None:
        """A kept result; None if it cannot be read, which is printed."""
        self._shown.add(path)
        try:
            result = load_artifact(path)
        except ArtifactError as problem:
            print(f"{name}: {problem}")
            return None
        print(f"{name}: read from {path}{remark}")
        return result

    @cached_property
    def llm(self) -> nnsight.TransformersModel:
        """The model, loaded on first use."""
        print(f"loading {self.params['MODEL_ID']}")
        source = str(self.checkpoint or self.params["MODEL_ID"])
        how = {key.lower(): self.params[key] for key in flagged("loading")}
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
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
        if not os.access(self.folder, os.W_OK):
            raise ParamsError(f"{self.folder} cannot be written; choose another OUT")
        with hold(self.folder / COMPUTING):
            remove_leftovers(self.folder)
            yield

    def _computed(self, probe: str, call: Callable | None, changed: Mapping, state: State) -> dict:
        """Compute and write a result, in place of one in this state."""
        if state.needs_replace and not self.params["REPLACE"]:
            raise superseded(state, " set REPLACE = True, and make a new Run")
        if state.word == "stale":
            print(f"{probe}: {state.path} is stale, computing it again", *state.reasons, sep="\n  ")
        wanted = self.provenance(probe, **changed)
        path = self.new_path(probe, **changed)
        llm = untrained(self.llm) if changed == RANDOM else self.llm  # loading is not the probe's time
        # the journal beside the result finds a remote job again that outlives this process
        with journalled(path) as jobs:
            start = time.perf_counter()
            result = call(llm) if call else self._measure(probe, llm, changed)
            seconds = round(time.perf_counter() - start, 3)
            if is_first():
                meta = self._meta(probe, llm, wanted) | {"seconds": seconds, "call": source_of(call)}
                if jobs:
                    meta["jobs"] = jobs
                if "igrads" in result:  # a server's sandbox has no gradients
                    meta["method"] = "increments" if "n_steps" in result else "gradients"
                if state.needs_replace:
                    for old in map(state.path.with_name, parse_name(state.path).files):
                        if old.exists():
                            print(f"{probe}: {old} is kept as {move_aside(old, 'superseded').name}")
                save_artifact(path, result, meta)
                print(f"{probe}: computed in {seconds:.1f} s, written to {path}")
        from_rank_0("written")  # the other ranks wait for it
        self._shown.add(path)
        return load_artifact(path)

    def _measure(self, probe: str, llm: nnsight.TransformersModel, changed: Mapping) -> dict:
        """Call the probe's own function with the settings of its artifact, but for those changed; layer effects in both
        modes."""
        row = ARTIFACTS[probe]
        how = {"remote": self.remote, **self.settings(probe)}
        how.pop("tolerance", None)  # for the judge alone: no argument
        how |= changed if changed != RANDOM else {}
        if row.reads:
            how["baseline_prompts" if row.reads == "baseline" else row.reads] = getattr(self, row.reads)
        function = getattr(depth_lib, row.function or probe)
        modes = how.pop("modes", None)
        if not modes:
            return function(llm, **how)
        return {key: value for mode in modes for key, value in function(llm, mode=mode, **how).items()}

    def _meta(self, probe: str, llm: nnsight.TransformersModel, wanted: Mapping) -> dict:
        """The provenance of a result that was just computed: the parameters on which it depends, and what ran where."""
        row = ARTIFACTS[probe]
        record = known(llm)
        asked = self.params
        meta = {name.lower(): value for name, value in asked.items() if name not in flagged("not compared")}
        meta |= {"dataset": self.dataset, "source": self.source}
        meta |= without_folders(meta)
        if self.dataset != asked["DATASET"]:
            meta["rows_of"] = asked["DATASET"]
        meta |= wanted
        meta |= {
            "commit": getattr(llm.config, "_commit_hash", None) or cached_commit(asked["MODEL_ID"], asked["REVISION"]),
            "check": record.checked,
            "runs": record.running,
            "blocks": remark(llm),
            "bos": begins_with_bos(llm.tokenizer),
            "where": self._where(llm),
            "remote": self.remote,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        if self.on_server and record.running:
            meta["dtype"] = record.running["dtype"]
            meta["quantization"] = asked["QUANTIZATION"] if record.running["quantized"] else None
        if row.reads:
            texts = getattr(self, row.reads)
            meta |= {"n_prompts": len(texts), "prompts_hash": prompts_hash(texts)}
        return meta

    def _where(self, llm: nnsight.TransformersModel) -> str:
        if self.on_server:
            return f"NDIF {host_of(self.remote)}"
        device = next(llm._module.parameters()).device
        return f"local {torch.cuda.get_device_name(device) if device.type == 'cuda' else device}"


def source_of(call: Callable | None) -> str | None:
    """A hash of the source code of a call; None if there is no call, or its code is not known."""
    with contextlib.suppress(TypeError, OSError):
        return prompts_hash([inspect.getsource(call)]) if call else None


def _hash_of_weights(llm: nnsight.TransformersModel) -> str:
    """16 hexadecimal digits of a hash of all parameters and buffers of a model in memory."""
    if not getattr(llm, "dispatched", False):
        raise ParamsError(
            "model= is one of dl.load_model(model, tokenizer), with its weights; for a server give MODEL_ID and REMOTE"
        )
    digest = hashlib.sha256()
    for name, tensor in llm._module.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def _in_memory(llm: nnsight.TransformersModel, name: str | None, weights: str) -> dict:
    """The parameters of a model in memory, under this name unless another model has it."""
    if not name or find_model(name):
        name = f"own-{weights[:8]}"
    dtype = str(llm.dtype).removeprefix("torch.")
    nothing = dict.fromkeys(("REVISION", "QUANTIZATION", "DEVICE_MAP"), "null")
    return {"MODEL": name, "MODEL_ID": name, "DTYPE": dtype, "TENSOR_PARALLEL": 1, "REMOTE": False} | nothing
