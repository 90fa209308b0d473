"""One run's parameters, the paths of its results and their expected provenance. Does not import torch."""

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
from ..hub import cached_commit
from ..models.gguf import WHEELS, gguf_in
from ..params import (
    NAMED_SOURCES,
    NOT_COMPARED,
    ParamsError,
    find_dataset,
    find_model,
    not_among,
    params_files,
    problems,
)
from ..results.provenance import fingerprint, prompts_hash, refuse_to_replace
from ..results.schemas import ARTIFACTS, Schema, artifact_path
from .defaults import filled_in, in_project

# Parameters that `provenance` describes in other words, and only for probes that depend on them.
_APART = ("MODEL_ID", "REVISION", "DATASET", "SOURCE", "N_EXAMPLES", "SEED")


class RunSpec:
    """The parameters of a run, from a cell: None is as the params files say, "null" is None, other names are ignored.

    prompts: a list to use instead of the prompts of DATASET and SOURCE. Raises ParamsError with every wrong parameter.

    dataset: the folder of the results. This is DATASET, except for your own prompts with the DATASET of a params file:
    then it is the name of the SOURCE file, or `own-` with a hash of the list.
    """

    def __init__(self, cell: Mapping, prompts: Iterable[str] | None = None):
        self.params, self.origins = filled_in(cell)
        params = self.params
        if wrong := "; ".join(problems(params)) or not_among(ARTIFACTS, "PROBES", *params["PROBES"]):
            raise ParamsError(wrong)
        name, model_id, known = params["MODEL"], params["MODEL_ID"], find_model(params["MODEL"])
        if known and model_id not in (name, known["MODEL_ID"]) and find_model(model_id):
            raise ParamsError(f"MODEL is {name} and MODEL_ID is {model_id}, which is another model; change one")
        self._dataset_file = find_dataset(params["DATASET"]) or {}
        if self._dataset_file.get("FILE"):
            params["SOURCE"] = "hub"  # other files do not replace it
        self.source = "drawn" if params["DATASET"] in DRAWN else params["SOURCE"]
        self._n_examples = params["N_EXAMPLES"]  # of the dataset's rows, which a baseline reads beside a list too
        if prompts is not None:
            self.prompts, self.source = list(prompts), "list"
            if not self.prompts:
                raise ParamsError("prompts is empty; give at least one text")
            params["N_EXAMPLES"] = len(self.prompts)
            for values in self.origins.values():
                values.pop("N_EXAMPLES", None)
        self.dataset, self.remote, self.out = self._dataset_name(), params["REMOTE"], in_project(params["OUT"])
        self.pair = find_pair(params["PAIR"], params["QUESTION"], params["ANSWER"], params["SEED"])
        self.folder = self.new_path("logit_lens").parent
        self.name = f"{self.dataset} × {name}"

    def new_path(self, probe: str) -> Path:
        """The path of a new result of the probe, with N_EXAMPLES in its name."""
        model, n = self.params["MODEL"], self.params["N_EXAMPLES"]
        return artifact_path(self.out, self.dataset, model, probe, n, self.pair.label)

    def path(self, probe: str) -> Path:
        """The path of the probe's result for this question, of any number of examples; if none, of a new one."""
        new, names = self.new_path(probe), ARTIFACTS[probe].names("*", self.pair.label)
        return new if new.exists() else min(self.folder.glob(names[0]), default=new)

    def provenance(self, probe: str) -> dict:
        """The provenance that an up-to-date result has; `why_stale` compares it.

        Prompts are compared by their hash, those of the Hub by a hash of the dataset's definition, without the network.
        Raises PromptError for prompts that cannot be read.
        """
        row, apart = ARTIFACTS[probe], (*NOT_COMPARED, *_APART)
        made_from = {name.lower(): value for name, value in self.params.items() if name not in apart}
        made_from |= {"settings": self.settings(probe)} | self._weights
        if self.on_server:  # it chooses these itself
            del made_from["dtype"], made_from["quantization"]
            made_from["remote"] = self.remote
        return made_from | self._of_prompts(row) if row.reads_prompts else made_from

    def _of_prompts(self, row: Schema) -> dict:
        """The part of `provenance` on the prompts."""
        on_hub, n = self.source == "hub", {"n_examples": self.params["N_EXAMPLES"]}
        if row.baseline and on_hub:
            return {"baseline": dataset_named("gsm8k").definition} | n
        if row.baseline:
            return {"baseline": prompts_hash(self.baseline)}
        if on_hub and not self._dataset_file.get("FILE"):
            shuffled = {"seed": self.params["SEED"]} if row.by_level else {}
            return {"source": "hub", "definition": dataset_named(self.params["DATASET"]).definition} | n | shuffled
        if row.by_level:
            return {"n_prompts": len(self.examples), "examples_hash": prompts_hash(self.examples)}
        return {"n_prompts": len(self.prompts), "prompts_hash": prompts_hash(self.prompts)}

    def refuse_to_replace(self, probe: str, wanted: Mapping, remedy: str, exact: bool = False) -> None:
        """Raise Superseded if the probe's result has another provenance than wanted, unless REPLACE is set."""
        if not self.params["REPLACE"]:
            refuse_to_replace(self.path(probe), wanted, remedy, exact)

    def settings(self, probe: str) -> dict:
        """The arguments of the probe: those of its row in ARTIFACTS, with this run's question and answer."""
        pair = {"question": self.pair.question, "answer": self.pair.answer}
        return {**ARTIFACTS[probe].settings, **(pair if ARTIFACTS[probe].of_pair else {})}

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
        """The prompts whose mean residual is uninformative: GSM8K's, on every dataset (Csordás et al. 2025, 3.4)."""
        if self.params["DATASET"] == "gsm8k" or not self._dataset_file:
            return self.prompts
        if self.params["SOURCE"] not in NAMED_SOURCES:
            raise PromptError(
                f"residual_erasure takes its baseline from gsm8k, and SOURCE {self.params['SOURCE']} is a file of "
                f"{self.params['DATASET']}; run it with DATASET gsm8k, or leave it out of PROBES"
            )
        return self._rows(load_prompts, "gsm8k")

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
    def _weights(self) -> dict:
        """The part of `provenance` on the weights: a fingerprint of local files, the commit on the Hub."""
        model_id, revision = self.params["MODEL_ID"], self.params["REVISION"]
        if model_id in WHEELS:
            return {"weights": WHEELS[model_id].sha256[:16]}
        if path := toy_path(model_id) if model_id in TOYS else self.checkpoint:
            return {"weights": fingerprint(path)}
        return {"model_id": model_id} | ({"commit": self.commit} if self.commit else {"revision": revision})

    @property
    def commit(self) -> str | None:
        """The commit of the model in the Hub's cache; None if it is not there."""
        return cached_commit(self.params["MODEL_ID"], self.params["REVISION"])

    def _rows(self, load: Callable[..., list], dataset: str) -> list:
        """N_EXAMPLES of a dataset, as `load_prompts` or `load_examples` gives them."""
        source = self.params["SOURCE"]
        where = source if source in NAMED_SOURCES else in_project(source)
        return load(dataset, self._n_examples, source=where, seed=self.params["SEED"])

    def _dataset_name(self) -> str:
        """`dataset`. ParamsError for a file that has the name of a dataset."""
        name = self.params["DATASET"]
        if not self._dataset_file or self.source in (*NAMED_SOURCES, "drawn"):
            return name
        if self.source == "list":
            return f"own-{prompts_hash(self.prompts)[:8]}"
        stem = Path(self.source).stem
        if stem in params_files("datasets"):
            raise ParamsError(f"results of {self.source} would be filed as the dataset {stem}; rename the file")
        return stem
