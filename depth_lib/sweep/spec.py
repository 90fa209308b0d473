"""One run's parameters: where its results are, and what they must have been made from. It loads no torch."""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

from ..data.examples import Example, load_examples
from ..data.pairs import find_pair
from ..data.prompts import DRAWN, load_prompts
from ..data.rows import NAMED_SOURCES
from ..embedded import TOYS, toy_path
from ..models.gguf import WHEELS, gguf_in
from ..params import NOT_COMPARED, Params, ParamsError, find_dataset, find_model, not_among, problems
from ..results.provenance import fingerprint, prompts_hash, read_meta, why_stale
from ..results.schemas import ARTIFACTS, artifact_path


def in_project(path: str | Path) -> Path:
    """A relative path as seen from the clone's root where the working directory is notebooks/, in which Jupyter starts
    a notebook's kernel; from anywhere else it is left as it is.

    So is a path that begins with .., or that exists in notebooks/ itself.
    """
    root, path = Path(__file__).resolve().parents[2], Path(path).expanduser()
    from_notebooks = Path.cwd() == root / "notebooks" and path.parts[:1] != ("..",) and not path.exists()
    return root / path if from_notebooks else path


class RunSpec:
    """A run's parameters, as in `RunSpec(globals())`; names that are no parameters are left out.

    Raises ParamsError with every wrong parameter.
    """

    def __init__(self, cell: Mapping):
        asked = Params().model_dump() | {name: cell[name] for name in Params.model_fields if name in cell}
        if wrong := "; ".join(problems(asked)) or not_among(ARTIFACTS, "PROBES", *asked["PROBES"]):
            raise ParamsError(wrong)
        self.asked = asked | {"MODEL_ID": _id_of(asked["MODEL"], asked["MODEL_ID"])}
        self.dataset, self.remote, self.out = asked["DATASET"], asked["REMOTE"], in_project(asked["OUT"])
        self.pair = find_pair(asked["PAIR"], asked["QUESTION"], asked["ANSWER"], asked["SEED"])
        self.folder = self._file("logit_lens", 0).parent
        self.name = f"{self.dataset} × {asked['MODEL']}"

    def path(self, probe: str, offline: bool = False) -> Path:
        """Where the probe's result is kept. Its name says how many prompts it holds, or questions of each level:
        N_EXAMPLES, or fewer where the source has fewer. Where there is none of that name yet, a result that earlier
        versions named by N_EXAMPLES counts, if it is not stale.

        offline: without the network; how many prompts the Hub has is then what an earlier run found. Raises PromptError
        for prompts that cannot be read.
        """
        row, n = ARTIFACTS[probe], self.asked["N_EXAMPLES"]
        by_n_examples = self._file(probe, n)
        if offline and self._fetches:
            paths = sorted(self.folder.glob(row.names("*", self.pair.label)[0]))
            paths = [path for path in paths if read_meta(path)[0].get("n_examples") == n]
            if len(paths) < 2:
                return paths[0] if paths else by_n_examples
            wanted = self.provenance(probe, offline)
            return min(paths, key=lambda path: bool(why_stale(path, wanted)))
        if row.by_level:
            n = max(Counter(example.level for example in self.examples).values())
        else:
            n = len(self.prompts)
        path = self._file(probe, n)
        if path.exists() or path == by_n_examples or why_stale(by_n_examples, self.provenance(probe)):
            return path
        return by_n_examples

    def provenance(self, probe: str, offline: bool = False) -> dict:
        """What a stored result must have been made from to be the one asked for; `why_stale` compares it.

        offline: without the network, so without the hash of prompts that come from the Hub.
        """
        row, settings = ARTIFACTS[probe], self.settings(probe)
        made_from = {name.lower(): value for name, value in self.asked.items() if name not in NOT_COMPARED}
        made_from |= {"weights": self._weights, "settings": settings}
        if self.dataset in DRAWN:
            made_from["source"] = "drawn"
        if offline and self._fetches:
            return made_from
        if row.baseline:
            settings["baseline_hash"] = prompts_hash(self.baseline)
        if row.by_level:
            prompts = [example.question + example.answer for example in self.examples]
            made_from["examples_hash"] = prompts_hash(self.examples)
        else:
            prompts = self.prompts
        return made_from | {"n_prompts": len(prompts), "prompts_hash": prompts_hash(prompts)}

    def settings(self, probe: str) -> dict:
        """The arguments that the probe is called with, as its row says, with this run's question and answer."""
        pair = {"question": self.pair.question, "answer": self.pair.answer}
        return {**ARTIFACTS[probe].settings, **(pair if ARTIFACTS[probe].of_pair else {})}

    @cached_property
    def prompts(self) -> list[str]:
        """The prompts of the run, in order."""
        return self._rows(load_prompts, self.dataset)

    @cached_property
    def examples(self) -> list[Example]:
        """N_EXAMPLES questions of each level of difficulty; PromptError if the dataset has no levels."""
        return self._rows(load_examples, self.dataset)

    @cached_property
    def baseline(self) -> list[str]:
        """The prompts whose mean residual is uninformative: GSM8K's, on every dataset (Csordás et al. 2025, 3.4)."""
        if self.dataset == "gsm8k":
            return self.prompts
        if self.asked["SOURCE"] not in NAMED_SOURCES:
            raise ParamsError(
                f"residual_erasure takes its baseline from gsm8k, and SOURCE {self.asked['SOURCE']} is a file of "
                f"{self.dataset}; run it with DATASET gsm8k, or leave it out of PROBES"
            )
        return self._rows(load_prompts, "gsm8k")

    @property
    def checkpoint(self) -> Path | None:
        """The checkpoint's folder or GGUF file, where the model is neither the Hub's nor ours."""
        if self.asked["MODEL_ID"] in (*TOYS, *WHEELS):
            return None
        path = in_project(self.asked["MODEL_ID"])
        return path if path.is_dir() or gguf_in(path) else None

    @cached_property
    def _weights(self) -> str | None:
        """A fingerprint of a checkpoint on this disk, which has no revision; the Hub's have None."""
        model_id = self.asked["MODEL_ID"]
        if model_id in WHEELS:
            return WHEELS[model_id].sha256[:16]
        path = toy_path(model_id) if model_id in TOYS else self.checkpoint
        return path and fingerprint(path)

    def _rows(self, load: Callable[..., list], dataset: str) -> list:
        """N_EXAMPLES of a dataset, as `load_prompts` or `load_examples` gives them."""
        source = self.asked["SOURCE"]
        where = source if source in NAMED_SOURCES else in_project(source)
        return load(dataset, self.asked["N_EXAMPLES"], source=where, seed=self.asked["SEED"])

    @cached_property
    def _fetches(self) -> bool:
        """Whether its prompts come from the network."""
        from_hub = self.asked["SOURCE"] == "hub" and self.dataset not in DRAWN
        return from_hub and not find_dataset(self.dataset).get("FILE")

    def _file(self, probe: str, n: int) -> Path:
        return artifact_path(self.out, self.dataset, self.asked["MODEL"], probe, n, self.pair.label)


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
