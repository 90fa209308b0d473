"""A run: one model on one data set. Its results, `OUT/<dataset>/<MODEL>/*.pt`, are read or computed by a `Run`.

All results of a run were computed with the same model, prompts and settings, which `run.json` in its folder lists. A
setting that is changed for one result is in that result's name. So a result is done if its file is there, by the
current version of its probe. Other settings need another OUT, or REPLACE, which moves the whole folder to OUT/replaced.
Does not import torch before something is computed.
"""

import contextlib
import inspect
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .data.choices import shipped_choices
from .data.datasets import dataset_named
from .data.drawn import DRAWN
from .data.examples import load_examples
from .data.pairs import find_pair
from .data.prompts import load_prompts
from .data.rows import PromptError
from .embedded import SAMPLES, TOYS, toy_path
from .files import CANNOT_WRITE, can_be_folder, hold, holder, in_project, write_together
from .hub import without_retries
from .models.gguf import WHEELS, gguf_in, is_gguf
from .params import (
    FIVE_PROBES,
    NAMED_SOURCES,
    Params,
    ParamsError,
    checked,
    find_dataset,
    find_model,
    not_among,
    params_files,
)
from .progress import LOG
from .results.provenance import (
    BROKEN,
    checkpoint_of,
    differing,
    is_damaged,
    prompts_hash,
    record_in,
    strays,
    weights_of,
    why_not_done,
)
from .results.schemas import ARTIFACTS, BY_RANDOM, RANDOM, RECORD, TABLE_PROBES, MissingArtifact, label_of

# The longest text that is read of an example or a multiple-choice question.
_TEXT_OF = {
    "examples": lambda example: example.question + example.answer,
    "choices": lambda choice: choice.context + max(choice.endings, key=len),
}


class OtherSettings(ParamsError):
    """The folder of a run has results with different settings."""


def resolved(given: Mapping) -> Params:
    """A run's parameters: those given (None is not), then what the model's file says, the data set's, the defaults.

    MODEL may also be a folder, a GGUF file or a Hub id. ParamsError for a wrong value or an unknown name.
    """
    given = checked(given)
    of_dataset = find_dataset(given.get("DATASET", "gsm8k")) or {}
    of_model = _model_values(given.get("MODEL", "toy-8l"), given.get("MODEL_ID"))
    checkpoint = checkpoint_of(given.get("MODEL_ID") or of_model["MODEL_ID"])
    if checkpoint and checkpoint.resolve().parent == toy_path("toy-8l").resolve().parent:
        of_model = {"SOURCE": "embedded"} | of_model  # what toy models were trained on
    ships = given.get("DATASET", "gsm8k") in SAMPLES
    if "SOURCE" in of_dataset and not (ships and not of_dataset.get("FILE")):
        of_model.pop("SOURCE", None)  # a model's SOURCE only chooses among the prompts that ship with the package
        if given.get("SOURCE") in ("embedded", "sample"):  # none ship of this one, which keeps its own
            del given["SOURCE"]
    values = of_dataset | of_model | {name: value for name, value in given.items() if name != "MODEL"}
    params = Params(**{name: _absolute(name, value) for name, value in values.items() if name in Params.model_fields})
    if problem := not_among(ARTIFACTS, "probe", *params.PROBES):
        raise ParamsError(problem)
    if params.LENS and not (params.LENS.endswith(".pt") and Path(params.LENS).is_file()):
        raise ParamsError(f"LENS={params.LENS}: no such .pt file; check the path")
    if params.SOURCE not in NAMED_SOURCES and not Path(params.SOURCE).is_file():
        raise ParamsError(f"SOURCE={params.SOURCE}: not a file; use hub, embedded, sample or the path of a file")
    return params


def _absolute(name: str, value: Any) -> Any:
    """A path as it is seen from every folder."""
    is_path = name == "OUT" or name in ("MODEL_ID", "SOURCE", "LENS") and value not in (*TOYS, *WHEELS, *NAMED_SOURCES)
    path = in_project(value) if is_path else None
    return str(path.absolute()) if path and (name == "OUT" or path.exists()) else value


def _model_values(name: str, model_id: str | None) -> dict:
    """The parameters of a model: those of its params file, or of the checkpoint at this place."""
    if known := find_model(name):
        if model_id in params_files("models") and model_id != known["MODEL_ID"]:
            raise ParamsError(
                f"MODEL_ID is {model_id}, but {name} is the name of a different model; set MODEL to a name of your "
                "choice"
            )
        return known
    place = model_id or name
    path = in_project(place)
    if path.exists() and not gguf_in(path) and not any(path.glob("*config.json")):
        what = "is a file" if path.is_file() else "has no config.json"
        raise ParamsError(f"{place} {what}; use a checkpoint folder (from save_pretrained or the Hub) or a .gguf file")
    short = name if model_id else (path.resolve() if path.exists() else path).name
    if not model_id and "/" not in name and not checkpoint_of(name):
        problem = not_among(params_files("models"), "model", name) or ""
        stop = "" if problem.endswith("?") else "."
        raise ParamsError(f"{problem}{stop} A folder, a GGUF file or a Hub id (owner/name) works too")
    return {
        "MODEL": re.sub(r"(?i)\.gguf$", "", short),
        "MODEL_ID": place,
        "DTYPE": _own_dtype(place),
        "DEVICE_MAP": "auto",
    }


def _own_dtype(model_id: str) -> str:
    """The dtype in config.json; float32 for a GGUF file, bfloat16 if it cannot be read."""
    if is_gguf(model_id):
        return "float32"
    try:
        if folder := checkpoint_of(model_id):
            file = folder / "config.json"
        else:
            from huggingface_hub import hf_hub_download  # takes a moment

            with without_retries(model_id):
                file = Path(hf_hub_download(model_id, "config.json"))
        config = json.loads(file.read_bytes())
        texts = config | config.get("text_config", {})
        return str(texts.get("dtype") or texts.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    except Exception:  # noqa: BLE001 (loading the model gives a better error)
        return "bfloat16"


def _of_notebook(names: Mapping) -> dict:
    """The parameters among a notebook's globals; ParamsError for a misspelt one in upper case."""
    for name in names:
        near = get_close_matches(name, Params.model_fields, cutoff=0.9)
        if near and name.isupper() and name not in {*Params.model_fields, "MODELS", "DATASETS", "ANSWERS"}:
            raise ParamsError(f'unknown parameter "{name}"; did you mean "{near[0]}"?')
    return {name: names[name] for name in names if name in Params.model_fields}


class Run:
    """Reads or computes the results that a notebook's parameters cell asks for: `Run(globals())`.

    >>> run = dl.Run({"MODEL": "toy-4l", "N_EXAMPLES": 3, "OUT": "mine"})
    >>> run.result("logit_lens")["res_kl_divs"].shape
    torch.Size([4])

    - cell: names and values of parameters: the options that `depth-lib run --help` lists, but in upper case, such as
      N_EXAMPLES. Any other name is an error. In a notebook's `globals()`, other names are ignored, except that an
      upper-case name close to a parameter's is an error
    - prompts: your own list of strings; DATASET is then a name of your choice, and N_EXAMPLES keeps the first ones. To
      supply answers as well, define a data set (params file) with ANSWERS

    Attributes:

    - folder: the folder of the results
    - prompts: list of strings
    - params: the parameters
    - llm: the model, loaded on first use

    Raises ParamsError, which lists every invalid parameter, and ValueError for prompts that are not strings.
    Cost: no forward pass; `result` computes missing results.
    """

    def __init__(self, cell: Mapping, prompts: Sequence[str] | None = None):
        if not isinstance(cell, Mapping):
            raise ParamsError(
                f'Run expects a dict of parameters, got {type(cell).__name__}; use dl.Run({{"MODEL": "toy-8l"}})'
            )
        self.params = params = resolved(_of_notebook(cell) if "__name__" in cell else cell)
        self.out = in_project(params.OUT)
        self.remote = params.REMOTE
        of_dataset = find_dataset(params.DATASET) or {}
        own_file = of_dataset.get("FILE", "") if params.SOURCE == "hub" else ""
        self.source = "list" if prompts is not None else "drawn" if self._is_drawn() else own_file or params.SOURCE
        self.has_responses = params.PART == "question" and bool(of_dataset.get("ANSWERS"))
        if prompts is not None:
            if of_dataset:
                raise ParamsError(
                    f"{params.DATASET} is the name of a data set; for your own prompts, set DATASET to a different name"
                )
            if params.PART == "question" or params.SOURCE not in NAMED_SOURCES:
                raise ParamsError("prompts= replaces the prompts of SOURCE and PART; leave SOURCE and PART out")
            from .data.tokens import texts_of  # loads torch

            self.prompts = texts_of(prompts)[: params.N_EXAMPLES if "N_EXAMPLES" in params.model_fields_set else None]
            params.N_EXAMPLES = len(self.prompts)
        is_file = prompts is None and params.SOURCE not in NAMED_SOURCES
        self.dataset = Path(self.source).stem if is_file and of_dataset else params.DATASET
        if is_file and find_dataset(self.dataset):
            raise ParamsError(
                f"the results for {self.source} would be filed as those of the data set {self.dataset}; rename the file"
            )
        part = "-answers" if self.has_responses else "-question" if params.PART == "question" else ""
        self.dataset += part + "-chat" * params.CHAT
        self.model = params.MODEL + f"-x{params.PASSES}" * (params.PASSES > 1)
        for name in (self.dataset, self.model):
            if not can_be_folder(name):
                raise ParamsError(f"{name!r} cannot be the name of a folder in {self.out}; use a name without slashes")
        if self.on_server:
            of_model = params.MODEL_ID in WHEELS or checkpoint_of(params.MODEL_ID or params.MODEL)
            control, passes = "CONTROL draws random weights", "PASSES unrolls the model"
            here = {control: params.CONTROL, passes: params.PASSES > 1, f"{params.MODEL} is": of_model}
            if what := next((what for what, is_asked in here.items() if is_asked), ""):
                raise ParamsError(
                    f"{what} on this machine, but REMOTE runs on a server; use only one of them, or set REMOTE to "
                    "local to test a remote run on this machine"
                )
        self.folder = self.out / self.dataset / self.model
        self.name = f"{self.dataset} × {self.model}"
        if prompts is None and not (self.folder / RECORD).exists():
            dataset_named(params.DATASET, params.SOURCE)  # refuses an unknown one
        self.pair = find_pair(params.PAIR, params.QUESTION, params.ANSWER, params.SEED)

    # ---- what is asked, and whether it is there

    @property
    def on_server(self) -> bool:
        """Whether the run is on NDIF or on a different server that speaks NDIF's protocol."""
        return self.remote not in (False, "local")

    @property
    def asked(self) -> dict[str, tuple[str, dict]]:
        """The requested results: name -> (probe, overridden arguments)."""
        params = self.params
        asked = {probe: (probe, {}) for probe in params.PROBES}
        if params.LENS and "logit_lens" in asked:
            asked["logit_lens@lens"] = "logit_lens", {"lens": str(in_project(params.LENS))}
        if params.GENERATE and "logit_lens" in asked:
            asked["logit_lens@generate"] = "logit_lens", {"generate": params.GENERATE, "per_token": True}
        if params.CONTROL:
            asked |= {probe + BY_RANDOM: (probe, RANDOM) for probe in TABLE_PROBES if probe in params.PROBES}
        return asked

    @property
    def lacking(self) -> list[str]:
        """Names of the requested results that are missing or out of date."""
        return [name for name, (probe, changed) in self.asked.items() if not self.is_done(probe, **changed)]

    def path(self, probe: str, **changed: object) -> Path:
        """The path of a probe's result. `changed`: as in `result`."""
        return self.folder / ARTIFACTS[probe].name(self.params.N_EXAMPLES, self.pair.label, label_of(changed))

    def is_done(self, probe: str, **changed: object) -> bool:
        """Whether the result exists, with the run's settings and from the current version of its probe."""
        path = self.path(probe, **changed)
        return path.exists() and not is_damaged(path) and not why_not_done(path, self.made_from(probe))

    def made_from(self, *probes: str) -> dict:
        """The settings that determine these probes' results.

        All probes of a run share them, except the hashes of the texts that they read.
        """
        params = self.params
        how = {"dtype": params.DTYPE, "quantization": params.QUANTIZATION, "remote": False}
        if self.on_server:  # it chooses these itself
            how = {"dtype": "the server's", "quantization": "the server's", "remote": params.REMOTE}
        how |= {"passes": params.PASSES, "chat": params.CHAT}
        texts = {"source": Path(self.source).name, "n_examples": params.N_EXAMPLES}
        texts |= {name: self._hash(name) for name in sorted({ARTIFACTS[probe].reads for probe in probes} - {""})}
        if "prompts" in texts:
            texts["responses"] = self._hash("responses") if self.has_responses else None
        return weights_of(params.MODEL_ID or params.MODEL, params.REVISION) | how | texts

    def other_settings(self, *probes: str) -> list[str]:
        """The differences between the settings of the folder's results and those of these probes, one line each."""
        record = record_in(self.folder)
        return strays(self.folder) + differing(record.get("made_from", {}), self.made_from(*probes))

    @property
    def _is_own(self) -> bool:
        """Whether the prompts are the user's."""
        return self.source not in (*NAMED_SOURCES, "drawn") or self.has_responses

    def check(self) -> None:
        """Raise ValueError for a LENS that does not fit the model, a tokenizer without a template for CHAT, and prompts
        that are all too short. Reads the lens, the config and the tokenizer, not the weights.
        """
        params, source = self.params, self._weights
        of_future = self._is_own and any("modes" in ARTIFACTS[probe].settings for probe in params.PROBES)
        if not (params.LENS or params.CHAT or of_future):
            return
        from .data.prompts import chat_prompts
        from .data.tokens import skips_of  # loads torch, as the next two do
        from .lenses.files import check_size, load_lens
        from .models.load import config_and_tokenizer

        lens = load_lens(in_project(params.LENS)) if params.LENS else None
        try:
            config, tokenizer = config_and_tokenizer(str(checkpoint_of(source) or source), params.REVISION)
        except Exception:  # noqa: BLE001 (to load the model gives the reason)
            return
        of_text = config.get_text_config()
        n_layers, width = (getattr(of_text, name, None) for name in ("num_hidden_layers", "hidden_size"))
        if lens and n_layers and width:
            check_size(lens, self.model, n_layers * params.PASSES, width)
        llm: Any = SimpleNamespace(config=config, tokenizer=tokenizer)
        prompts = self.prompts if self._is_own else ["5 + 7 = ?"]
        prompts = chat_prompts(llm, prompts) if params.CHAT else prompts
        if of_future:
            skips_of(llm, prompts, "future", ("future",))

    def settle(self, *probes: str) -> None:
        """Claim the folder for this run.

        If it has results with different settings, the folder is moved to OUT/replaced if REPLACE is set; without
        REPLACE, OtherSettings is raised.
        """
        if self.other_settings(*probes):
            with self._alone():
                self._settle(*probes)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the run's lock, which is beside its folder. ParamsError if OUT cannot be written."""
        with _writing(self.folder):
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            lock = hold(self.folder.parent / f".{self.model}.lock")
            lock.__enter__()
        try:
            yield
        finally:
            lock.__exit__(None, None, None)

    @property
    def sweeps(self) -> Path:
        """The lock that a sweep holds while it executes the run's notebook."""
        return self.folder.parent / f".{self.model}.sweep.lock"

    def _settle(self, *probes: str) -> None:
        if not (differences := self.other_settings(*probes)):
            return
        aside = self.out / "replaced" / self.dataset / f"{self.model}-{time.time_ns() // 10**6}"
        if not self.params.REPLACE:
            name = f"run NAME {self.params.DATASET} --model-id {self.params.MODEL_ID}"
            raise OtherSettings(
                f"{self.folder} has results with different settings ({'; '.join(differences)}). Set REPLACE "
                f"(--replace) to move them to {self.out / 'replaced'}, or set a different OUT"
                + f", or name this model differently: {name}"
                * ("different weights" in differences)
            )
        if LOG not in os.environ and (process := holder(self.sweeps)):
            raise ParamsError(
                f"{process} is executing {self.name} with different settings; stop it first, or set a different OUT"
            )
        with _writing(self.folder):
            aside.parent.mkdir(parents=True, exist_ok=True)
            self.folder.rename(aside)
        print(f"{self.folder} had results with different settings ({'; '.join(differences)}); they are now in {aside}")

    def _hash(self, read: str) -> str:
        """A hash of the texts of this kind; for the Hub's, a hash of what defines them."""
        dataset = {"baseline": "gsm8k", "choices": "hellaswag"}.get(read, self.params.DATASET)
        source = self.source if dataset == self.params.DATASET else self.params.SOURCE
        if source == "hub" and not (find_dataset(dataset) or {}).get("FILE"):
            return f"{dataset_named(dataset).definition} seed {self.params.SEED} {self.params.PART}"
        return prompts_hash(getattr(self, read))

    # ---- the texts

    @cached_property
    def prompts(self) -> list[str]:
        """The prompts of the run, in order."""
        return self._load(load_prompts, self.params.DATASET, **self._seed, part=self.params.PART)

    @cached_property
    def responses(self) -> list[str]:
        """The stored response to each question, from the field named by ANSWERS in the data set's params file."""
        return self._load(load_prompts, self.params.DATASET, part="answer")

    @cached_property
    def examples(self) -> list:
        """N_EXAMPLES questions per difficulty level. Raises PromptError if the data set has no levels."""
        return self._load(load_examples, self.params.DATASET, seed=self.params.SEED)

    @cached_property
    def choices(self) -> list:
        """N_EXAMPLES HellaSwag questions, from the shipped ones if SOURCE is a file of prompts."""
        return shipped_choices(self.params.N_EXAMPLES, self.params.SOURCE)

    @cached_property
    def baseline(self) -> list[str]:
        """The prompts for the mean residual stream: GSM8K's, or the run's own for a data set without a params file."""
        if (self.params.DATASET == "gsm8k" and self.params.PART == "all") or not find_dataset(self.params.DATASET):
            return self.prompts
        if self.params.SOURCE not in NAMED_SOURCES:
            raise PromptError(
                "residual_erasure takes its baseline from GSM8K, not from a file of other prompts; use SOURCE=hub, or, "
                "if the file has GSM8K problems, DATASET=gsm8k with PART=all"
            )
        return self._load(load_prompts, "gsm8k")

    def _load(self, load: Callable[..., list], dataset: str, **how: object) -> list:
        source = self.params.SOURCE
        source = source if source in NAMED_SOURCES else in_project(source)
        return load(dataset, self.params.N_EXAMPLES, source=source, **how)

    @property
    def _seed(self) -> dict:
        return {"seed": self.params.SEED} if self._is_drawn() else {}

    def _is_drawn(self) -> bool:
        return self.params.DATASET in DRAWN and self.params.SOURCE in NAMED_SOURCES

    # ---- the results

    @property
    def _weights(self) -> str:
        """What `load_model` is given: the path of a local checkpoint, or a name."""
        name = self.params.MODEL_ID or self.params.MODEL
        return name if name in (*TOYS, *WHEELS) else str(checkpoint_of(name) or name)

    @cached_property
    def llm(self) -> Any:
        """The model, loaded on first use."""
        from .models.load import load_model
        from .models.memory import check_fits

        params, source = self.params, self._weights
        how: dict[str, Any] = {"revision": params.REVISION}
        if not self.on_server:  # it chooses these itself
            quantization = None if params.QUANTIZATION == "none" else params.QUANTIZATION
            how |= {"dtype": params.DTYPE, "quantization": quantization, "device_map": params.DEVICE_MAP}
        print(f"loading {source}")
        if not self.on_server and source not in (*TOYS, *WHEELS):
            check_fits(source, **how)
        return load_model(
            toy_path(source) if source in TOYS else source, remote=self.remote, passes=params.PASSES, **how
        )

    def begin(self) -> None:
        """Print the parameters, claim the folder, and load the model if a result is missing."""
        print(self.params)
        self.settle(*self.params.PROBES)
        if self.lacking:
            self.check()
            self.llm  # noqa: B018 (is loaded)

    def result(self, probe: str, **changed: object) -> dict | None:
        """The result of a probe, read or computed; None if it is missing and the probe is not in PROBES.

        - probe: the probe's name
        - changed: arguments of the probe to override, such as part="mlp"; they become part of the file's name

        Raises OtherSettings if the folder has results with different settings and REPLACE is not set, and ParamsError
        for an unknown argument. Errors from loading the model or prompts, running the probe or writing files propagate.
        """
        from .results.artifacts import load_artifact

        self._check_changed(probe, changed)
        path = self.path(probe, **changed)
        if not self.is_done(probe, **changed):
            if probe not in self.params.PROBES:
                print(f"{probe}: left out (PROBES = {', '.join(self.params.PROBES)})")
                return None
            with self._alone():
                if not self.is_done(probe, **changed):  # nor did another process compute it meanwhile
                    self._settle(probe)
                    return self._computed(probe, path, changed)
        print(f"{probe}: read from {path}, nothing to compute")
        return load_artifact(path)

    def _check_changed(self, probe: str, changed: Mapping) -> None:
        """ParamsError for an argument that may not be changed."""
        if problem := not_among(ARTIFACTS, "probe", probe):
            raise ParamsError(problem)
        if not changed or changed == RANDOM:
            return
        import depth_lib as dl

        function = ARTIFACTS[probe].function or probe
        texts = ("llm", "prompts", "examples", "baseline_prompts", "remote")
        arguments = [name for name in inspect.signature(getattr(dl, function)).parameters if name not in texts]
        for name in changed:
            if name in texts:
                raise ParamsError(
                    f"{name} is set by the run; for a different one, call dl.{function}(run.llm, …) yourself"
                )
        if problem := not_among(arguments, f"{probe} argument", *changed):
            raise ParamsError(problem)

    def further(self) -> Iterator[tuple[str, dict]]:
        """Yield (probe, result) for every requested probe beyond the papers' five, without the control's results."""
        for name, (probe, changed) in self.asked.items():
            if name not in FIVE_PROBES and (result := self.result(probe, **changed)) and changed != RANDOM:
                yield probe, result

    def depths(self) -> list[str]:
        """The run's effective depths, one printable line each. Raises MissingArtifact if the run has no results yet."""
        from .report.table import depth_lines
        from .results.study import Study

        if not any(self.folder.glob("*.pt")):
            raise MissingArtifact(f'{self.folder} has no results yet; run a probe first: run.result("logit_lens")')
        return depth_lines(Study(self.out, [self.model], [self.dataset]))

    def _computed(self, probe: str, path: Path, changed: Mapping) -> dict:
        """Compute and write a result."""
        from .depths import untrained
        from .remote import journalled
        from .results.artifacts import load_artifact, save_artifact

        llm = untrained(self.llm) if changed == RANDOM else self.llm  # loading is not the probe's time
        with journalled(path) as jobs:  # finds a remote job again that outlives this process
            start = time.perf_counter()
            result = self._call(probe, llm, changed)
            seconds = round(time.perf_counter() - start, 3)
            if self.path(probe, **changed).exists():  # by an earlier version
                path.unlink()
            self._note(path, probe)
            save_artifact(path, result, self._meta(probe, changed, result["meta"]) | {"seconds": seconds, "jobs": jobs})
        print(f"{probe}: computed in {seconds:.1f} s, written to {path}")
        return load_artifact(path)

    def note(self) -> None:
        """Write this run's settings to run.json."""
        with self._alone():
            self._note()

    def _note(self, path: Path | None = None, probe: str = "") -> None:
        """Write the requested settings to run.json, and those of the result at this path."""
        record = {"made_from": {}, "versions": {}} | record_in(self.folder) | {"params": self.params.model_dump()}
        record.pop(BROKEN, None)
        if path:
            record["made_from"] |= self.made_from(probe)
            record["versions"][path.name] = ARTIFACTS[probe].version
        with _writing(self.folder):
            self.folder.mkdir(exist_ok=True)  # beside the lock
            write_together({self.folder / RECORD: json.dumps(record, indent=1).encode()})

    def settings(self, probe: str) -> dict:
        """The probe's arguments: those in its row of `ARTIFACTS`, with the run's question and answer."""
        row = ARTIFACTS[probe]
        pair = {"question": self.pair.question, "answer": self.pair.answer} if row.of_pair else {}
        return {**row.settings, **pair}

    def _texts(self, probe: str, llm: Any, changed: Mapping) -> list | None:
        """The texts that the probe reads. Only the package's own are left out if they are too long for the model."""
        from .data.prompts import chat_prompts
        from .data.tokens import fitting

        reads = ARTIFACTS[probe].reads
        texts = getattr(self, reads) if reads else None
        if self.params.CHAT and reads == "prompts":
            texts = chat_prompts(llm, self.prompts)
        if texts is None or reads != "choices" and self._is_own:
            return texts
        generate = changed.get("generate", 0)  # the probe refuses what is not a whole number
        return fitting(llm, texts, _TEXT_OF.get(reads, str), generate if isinstance(generate, int) else 0)

    def _call(self, probe: str, llm: Any, changed: Mapping) -> dict:
        """Call the probe's function; layer effects in both modes."""
        import depth_lib as dl

        row = ARTIFACTS[probe]
        how = {"remote": self.remote, **self.settings(probe), **(changed if changed != RANDOM else {})}
        if row.reads:
            how["baseline_prompts" if row.reads == "baseline" else row.reads] = self._texts(probe, llm, changed)
        function = getattr(dl, row.function or probe)
        how |= {"answers": self.responses} if self._measures_responses(probe, changed) else {}
        modes = how.pop("modes", None)
        if not modes or "mode" in how:
            return function(llm, **how)
        return {key: value for mode in modes for key, value in function(llm, mode=mode, **how).items()}

    def _measures_responses(self, probe: str, changed: Mapping) -> bool:
        """Whether this call measures the tokens of the stored responses only."""
        import depth_lib as dl

        can = "answers" in inspect.signature(getattr(dl, ARTIFACTS[probe].function or probe)).parameters
        return self.has_responses and can and not {"generate", "answers", "at"} & changed.keys()

    def _meta(self, probe: str, changed: Mapping, found: dict) -> dict:
        """The provenance of a result that was just computed. found: what the probe itself recorded."""
        answers = {name: value for name, value in found["settings"].items() if name == "answers"}
        meta = found | self.made_from(probe) | {"settings": self.settings(probe) | dict(changed) | answers}
        meta |= {"model": self.model, "dataset": self.dataset, "seed": self.params.SEED}
        if changed == RANDOM:
            meta |= {"dtype": "float32", "quantization": "none", "weights": "random"}
        if self.on_server:
            meta["dtype"] = found.get("dtype", meta["dtype"])
        return meta


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn errors of the disk into ParamsError that say what to do."""
    try:
        yield
    except OSError as error:
        place = error.filename or folder
        raise ParamsError(f"{place}: {error.strerror or error}; {CANNOT_WRITE}") from error
