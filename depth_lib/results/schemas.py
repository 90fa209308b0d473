"""What each probe's .pt file holds: its name, its keys and their shapes. A new probe is one more row of ARTIFACTS.

Without torch, so that results are listed in no time.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..data.prompts import ANSWER, QUESTION
from ..params import not_among


class ArtifactError(Exception):
    """A probe's result that cannot be written or read; the message names the file and the next step."""


class MissingArtifact(ArtifactError, FileNotFoundError):
    """A probe's result that is not there yet; the message holds the command that makes it."""


@dataclass(frozen=True)
class Schema:
    """One probe's file: its name with `{n}` for the number of examples, and the shape of each key.

    `required` are the papers' own keys; `optional` are ours, checked where present. In a shape, L is the number of
    blocks, T the tokens, P the prompts (F those long enough for future mode); a letter means one number per file.
    `settings` are what a sweep runs the probe with; `baseline`: it reads further prompts, whose hash is a setting too.
    `by_level`: it runs on examples with levels of difficulty, E of them on K levels.
    `further`: it runs where PROBES asks for it by name only. `function`: of the api, where it has another name. `cost`:
    its seconds beside the others', as measured on models of 4 to 16 blocks. `version`: goes up when what the probe
    computes is mended, so that older results are stale.
    """

    file: str
    required: Mapping[str, str]
    optional: Mapping[str, str] = field(default_factory=dict)
    tokens_file: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    baseline: bool = False
    by_level: bool = False
    further: bool = False
    function: str = ""
    cost: float = 2
    version: int = 1

    @property
    def of_pair(self) -> bool:
        """Whether it looks at a question and its answer, whose label then stands in the file's name."""
        return "question" in self.settings

    def names(self, n: int | str, pair: str = "") -> tuple[str, str | None]:
        """The file's name for n examples and a pair's label, and that of the tokens beside it."""
        ending = f"_{pair}" if pair and self.of_pair else ""
        file, tokens = self.file.format(n=n), self.tokens_file and self.tokens_file.format(n=n)
        return f"{file[:-3]}{ending}.pt", tokens and f"{tokens[:-4]}{ending}.txt"


def _keys(text: str, sums: bool = False) -> dict[str, str]:
    """key -> shape, of "shape: key key; shape: key …". sums: of the keys' sums per prompt, and how many tokens each."""
    keys = {}
    for part in text.split(";"):
        shape, names = part.split(":")
        keys |= dict.fromkeys(names.split(), shape.strip())
    if sums:
        keys = {f"{key}_sums": f"P {shape}" for key, shape in keys.items()} | {"n_tokens": "P"}
    return keys


def _skips(mode: str, prompts: str) -> dict[str, str]:
    keys = _keys(f"L L: max_{mode}_layer; L 1: max_{mode}_out; L: {mode}_kl {mode}_loss {mode}_top1")
    by_prompt = {f"{key}_by_prompt": f"{prompts} {shape}" for key, shape in keys.items()}
    return keys | by_prompt | _keys(f"L L: max_{mode}_layer_resolution; L 1: max_{mode}_out_resolution")


_PAIR = {"question": QUESTION, "answer": ANSWER}
_MODES = {"modes": ["future", "all"]}
_GAUSS = {"quadrature": "gauss", "tolerance": 0.01}
_CONTRIBUTION = "L: rc_att rc_mlp rc_layer att_cos mlp_cos layer_cos"
_FURTHER_CONTRIBUTION = (
    "L: io_cos norm_att norm_mlp; L+1: norm_residual progress; L-1: turn; L+1 L+1: angular",  # with sums per prompt
    "L+1: max_norm_residual; L: max_norm_att max_norm_mlp max_rc_att max_rc_mlp; "
    "L+1 L+1: angular_last; L T: first_change",
)
_LENS = "L: res_kl_divs res_overlaps"
_FURTHER_LENS = "L: res_top1 res_mrr res_in_top3 res_in_top5 res_in_top10 res_entropy res_jsd res_settled"
_SKIPS = Schema(
    "layer_effects_{n}exps.pt",
    required=_keys("L L: max_future_layer; L 1: max_future_out"),
    optional=_skips("future", "F") | _skips("all", "P") | _skips("remove", "P"),
    settings=_MODES,
    cost=14,
)
_GRADIENTS = Schema(
    "igrads_igrads_{n}exps.pt",
    required=_keys("L T: igrads"),
    optional=_keys("L: completeness f_difference n_nodes error quadrature rounding"),
    tokens_file="igrads_tokens_{n}exps.txt",
    settings=_PAIR | _GAUSS,
    cost=7,
)


def _part_effects(part: str) -> Schema:
    file, settings = f"{part}_effects_{{n}}exps.pt", _MODES | {"part": part}
    return replace(_SKIPS, file=file, settings=settings, further=True, function="layer_effects")


def _part_gradients(part: str) -> Schema:
    file, tokens_file = f"igrads_{part}_igrads_{{n}}exps.pt", f"igrads_{part}_tokens_{{n}}exps.txt"
    settings = _PAIR | _GAUSS | {"at": part}
    return replace(
        _GRADIENTS, file=file, tokens_file=tokens_file, settings=settings, further=True, function="integrated_gradients"
    )


ARTIFACTS = {
    "relative_contribution": Schema(
        "relative_contribution.pt",
        required=_keys(_CONTRIBUTION),
        optional=_keys("; ".join(_FURTHER_CONTRIBUTION))
        | _keys(_CONTRIBUTION, sums=True)
        | _keys(_FURTHER_CONTRIBUTION[0], sums=True),
        cost=1,
    ),
    "layer_effects": _SKIPS,
    "logit_lens": Schema(
        "logitlens_{n}exps.pt",
        required=_keys(_LENS),
        optional=_keys(_FURTHER_LENS) | _keys(_LENS, sums=True) | _keys(_FURTHER_LENS, sums=True),
    ),
    "residual_erasure": Schema(
        "logit_erasure_{n}exps.pt",
        required=_keys("L+1 T: erasure_effect"),
        optional=_keys("L+1 T: erasure_effect_resolution"),
        tokens_file="logit_erasure_tokens_{n}exps.txt",
        settings=_PAIR,
        baseline=True,
    ),
    "integrated_gradients": _GRADIENTS,
    "attention_effects": _part_effects("attention"),
    "mlp_effects": _part_effects("mlp"),
    "attention_gradients": _part_gradients("attention"),
    "mlp_gradients": _part_gradients("mlp"),
    "local_effects": Schema(
        "local_effects_{n}exps.pt",
        required=_keys("L L: max_future_local max_all_local"),
        optional=_keys(
            "F L L: max_future_local_by_prompt; P L L: max_all_local_by_prompt; "
            "L L: max_future_local_resolution max_all_local_resolution"
        ),
        settings=_MODES,
        further=True,
        cost=10,
    ),
    "future_erasure": Schema(
        "future_erasure_{n}exps.pt",
        required=_keys("L+1 T: future_erasure past_erasure"),
        optional=_keys("L+1 T: future_erasure_resolution past_erasure_resolution"),
        tokens_file="future_erasure_tokens_{n}exps.txt",
        settings=_PAIR,
        baseline=True,
        further=True,
        cost=6,
    ),
    "depth_by_difficulty": Schema(
        "depth_by_difficulty_{n}exps.pt",
        required=_keys("E: level; E L L: layer_effect; E L: output_effect"),
        optional=_keys(
            "K: levels; K L L: mean_layer_effect max_layer_effect; K L: mean_output_effect max_output_effect; "
            "E L L: layer_effect_resolution; E L: output_effect_resolution"
        ),
        by_level=True,
        further=True,
        cost=14,
    ),
}

PROBES = tuple(probe for probe, row in ARTIFACTS.items() if not row.further)  # the papers' five
FURTHER_PROBES = tuple(probe for probe, row in ARTIFACTS.items() if row.further)


def unknown_probe(names: Iterable[str]) -> str | None:
    """What is wrong with the first of these names that is no probe's; None if all are."""
    return not_among(ARTIFACTS, "PROBES", *names)


# What belongs to two models lies one folder higher, `out/linear_maps/`, where no dataset × model looks for its own.
BETWEEN_MODELS = {
    "linear_map": Schema(
        "linear_map_{source}_to_{target}.pt",
        required=_keys(
            "M N: relative strength; N: relative_mean best; P: n_tokens; P M N: relative_sums; P N: mean_sums"
        ),
    )
}
SCHEMAS = ARTIFACTS | BETWEEN_MODELS


def artifact_path(out: str | Path, dataset: str, model: str, probe: str, n_examples: int, pair: str = "") -> Path:
    """Where a probe's result lives: `out/dataset/model/file`. ArtifactError if probe is not one of ARTIFACTS.

    pair: the label of question and answer (see `pairs.find_pair`), for probes that look at one; "" is the papers'.
    """
    if probe not in ARTIFACTS:
        raise ArtifactError(f"no probe is called {probe!r}; the probes are {', '.join(ARTIFACTS)}")
    for name in (dataset, model):
        if name in ("", ".", "..") or Path(name).name != name:
            raise ArtifactError(f"{name!r} cannot be a folder under {out}; use a short name such as Qwen2.5-7B")
    return Path(out) / dataset / model / ARTIFACTS[probe].names(n_examples, pair)[0]


def probe_of(path: str | Path) -> tuple[str, int | None]:
    """The probe a file name belongs to and its number of examples; ArtifactError if it is no probe's file."""
    probe, n, _ = _read_name(path)
    return probe, n


def pair_of(path: str | Path) -> str:
    """The label of the question and answer that a file is about; "" for the papers', and where there is none."""
    return _read_name(path)[2]


def of_pair(name: str, pair: str) -> str:
    """How a probe or metric is called that is about another question than the papers': `residual_erasure:spouse`."""
    return f"{name}:{pair}" if pair else name


def without_pair(name: str) -> str:
    """The probe or metric of a name that `of_pair` made."""
    return name.partition(":")[0]


def _read_name(path: str | Path) -> tuple[str, int | None, str]:
    for probe, schema in SCHEMAS.items():
        pattern = re.escape(schema.file).replace(r"\{source\}_to_\{target\}", ".+_to_.+")
        pair = r"(?:_(?P<pair>[a-z0-9_-]+))?" if schema.of_pair else ""
        pattern = pattern.replace(r"\{n\}exps", rf"(?P<n>\d+)exps{pair}")
        if match := re.fullmatch(pattern, Path(path).name):
            found = match.groupdict()
            return probe, int(found["n"]) if "n" in found else None, found.get("pair") or ""
    names = ", ".join(schema.file for schema in SCHEMAS.values())
    raise ArtifactError(f"{path} is not the name of an artifact; the names are {names}")


def mismatch(probe: str, result: object) -> str | None:
    """The first way in which a result has not the keys and shapes of its probe; tensors are what has a shape."""
    if not isinstance(result, dict) or not all(isinstance(key, str) for key in result):
        return f"it holds a {type(result).__name__}, not a dict of named tensors"
    if not isinstance(result.get("meta", {}), dict):
        return "its meta is not a dict"
    schema = SCHEMAS[probe]
    sizes: dict[str, int] = {}
    for key, shape in (schema.required | schema.optional).items():
        if key not in result:
            if key in schema.required:
                return f"it has no key {key} (it has {', '.join(result) or 'none'})"
            continue
        if not hasattr(result[key], "shape"):
            return f"{key} is a {type(result[key]).__name__}, not a tensor"
        dims, found = shape.split(), list(result[key].shape)
        if len(dims) != len(found) or not all(_fits(dim, n, sizes) for dim, n in zip(dims, found, strict=True)):
            known = ", ".join(f"{letter} = {size}" for letter, size in sizes.items())
            return f"{key} has shape {found}, not [{', '.join(dims)}]" + (f" with {known}" if known else "")
    tokens = result.get("tokens")
    if schema.tokens_file and tokens is not None:
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            return "tokens is not a list of strings"
        if len(tokens) != sizes["T"]:
            return f"it has {len(tokens)} tokens, but {sizes['T']} columns"
    return None


def _fits(dim: str, size: int, sizes: dict[str, int]) -> bool:
    """Whether an axis has the size its letter stands for; the first axis with a letter decides. A letter is at least 1,
    so that only [L-1] of a model of one block is empty."""
    if dim == "1":
        return size == 1
    n = size - int(dim[1:] or 0)
    return n > 0 and sizes.setdefault(dim[0], n) == n
