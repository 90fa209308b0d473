"""What each probe's .pt file holds: its name, its keys and their shapes. A new probe is one more row of ARTIFACTS.

This module does not import torch, so that listing results is fast.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..data.prompts import ANSWER, QUESTION


class ArtifactError(Exception):
    """A probe's result that cannot be written or read; the message names the file and the next step."""


class MissingArtifact(ArtifactError, FileNotFoundError):
    """A probe's result that is not there yet; the message holds the command that makes it."""


@dataclass(frozen=True)
class Schema:
    """One probe's file: its name, with `{n}` for the number of examples, and the shape of each key.

    `required` are the papers' own keys; `optional` are ours, checked where present. In a shape, L is the number of
    blocks, T of tokens, P of prompts (F of those long enough for future mode), E of examples on K levels of difficulty;
    any other letter is a number that is the same for the whole file.
    `settings`: the arguments that a sweep passes to the probe. `function`: its name in `api`, if it is not the row's.
    `baseline`: the probe reads further prompts, whose hash is a setting too. `by_level`: it runs on examples with
    levels of difficulty. `further`: it runs only if PROBES names it. `version`: raise it when a mistake in the probe is
    corrected, so that older results are stale.
    """

    file: str
    required: Mapping[str, str]
    optional: Mapping[str, str] = field(default_factory=dict)
    tokens_file: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    function: str = ""
    baseline: bool = False
    by_level: bool = False
    further: bool = False
    version: int = 1

    @property
    def shapes(self) -> dict[str, str]:
        """The shape of each key, required or optional."""
        return {**self.required, **self.optional}

    @property
    def of_pair(self) -> bool:
        """Whether the probe measures a question with its answer, whose label is then part of the file's name."""
        return "question" in self.settings

    def names(self, n: int | str, pair: str = "") -> tuple[str, str | None]:
        """The file's name for n examples and a pair's label, and the name of the text file with its tokens."""
        ending = f"_{pair}" if pair and self.of_pair else ""
        file, tokens = self.file.format(n=n), self.tokens_file and self.tokens_file.format(n=n)
        return f"{file[:-3]}{ending}.pt", tokens and f"{tokens[:-4]}{ending}.txt"


def _keys(text: str, sums: bool = False) -> dict[str, str]:
    """key -> shape, from "shape: key key; shape: key …"; with `sums`, of the keys' sums per prompt and `n_tokens`."""
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
)
_GRADIENTS = Schema(
    "igrads_igrads_{n}exps.pt",
    required=_keys("L T: igrads"),
    optional=_keys("L: completeness f_difference n_nodes error quadrature rounding"),
    tokens_file="igrads_tokens_{n}exps.txt",
    settings=_PAIR | _GAUSS,
)


def _part_effects(part: str) -> Schema:
    file, settings = f"{part}_effects_{{n}}exps.pt", _MODES | {"part": part}
    return replace(_SKIPS, file=file, settings=settings, function="layer_effects", further=True)


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
    ),
    "future_erasure": Schema(
        "future_erasure_{n}exps.pt",
        required=_keys("L+1 T: future_erasure past_erasure"),
        optional=_keys("L+1 T: future_erasure_resolution past_erasure_resolution"),
        tokens_file="future_erasure_tokens_{n}exps.txt",
        settings=_PAIR,
        baseline=True,
        further=True,
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
    ),
}

PROBES = tuple(probe for probe, row in ARTIFACTS.items() if not row.further)  # the papers' five
FURTHER_PROBES = tuple(probe for probe, row in ARTIFACTS.items() if row.further)


# Results about two models are in `out/linear_maps/`, outside the folders of a dataset × model.
BETWEEN_MODELS = {
    "linear_map": Schema(
        "linear_map_{source}_to_{target}.pt",
        required=_keys(
            "M N: relative strength; N: relative_mean best; P: n_tokens; P M N: relative_sums; P N: mean_sums"
        ),
    )
}
SCHEMAS = ARTIFACTS | BETWEEN_MODELS


def artifact_path(out: str | Path, dataset: str, model: str, probe: str, n: int, pair: str = "") -> Path:
    """Path of a probe's result, `out/dataset/model/file`. ArtifactError if probe is not in ARTIFACTS.

    n: the number of examples. pair: the label of question and answer (see `pairs.find_pair`), for probes that measure
    one; "" is the papers'.
    """
    if probe not in ARTIFACTS:
        raise ArtifactError(f"no probe is called {probe!r}; the probes are {', '.join(ARTIFACTS)}")
    for name in (dataset, model):
        if name in ("", ".", "..") or Path(name).name != name:
            raise ArtifactError(f"{name!r} cannot be a folder under {out}; use a short name such as Qwen2.5-7B")
    return Path(out) / dataset / model / ARTIFACTS[probe].names(n, pair)[0]


def parse_name(path: str | Path) -> tuple[str, int | None, str]:
    """The probe of a file name, its number of examples and its pair's label; ArtifactError for any other name.

    The number is None where the name has none, and the label "" for the papers' pair and for probes without one.
    """
    for probe, schema in SCHEMAS.items():
        pattern = re.escape(schema.file).replace(r"\{source\}_to_\{target\}", ".+_to_.+")
        label = "(?:_([a-z0-9_-]+))?" if schema.of_pair else "()"
        pattern = pattern.replace(r"\{n\}exps", rf"(\d+)exps{label}")
        if match := re.fullmatch(pattern, Path(path).name):
            n, pair = match.groups() or (None, "")
            return probe, n and int(n), pair or ""
    names = ", ".join(schema.file for schema in SCHEMAS.values())
    raise ArtifactError(f"{path} is not the name of an artifact; the names are {names}")


def of_pair(name: str, pair: str) -> str:
    """The name of a probe or metric for another question than the papers': `residual_erasure:spouse`."""
    return f"{name}:{pair}" if pair else name


def without_pair(name: str) -> str:
    """The probe or metric in a name made by `of_pair`."""
    return name.partition(":")[0]


def mismatch(probe: str, result: object) -> str | None:
    """The first difference between a result and the keys and shapes of its probe; None if there is none."""
    if not isinstance(result, dict) or not isinstance(result.get("meta", {}), dict):
        return "it is not a dict of named tensors with a dict `meta`"
    schema = SCHEMAS[probe]
    sizes: dict[str, int] = {}
    for key, shape in schema.shapes.items():
        if key not in result:
            if key in schema.required:
                return f"it has no key {key} (it has {', '.join(map(str, result)) or 'none'})"
            continue
        if not hasattr(result[key], "shape"):
            return f"{key} is a {type(result[key]).__name__}, not a tensor"
        axes, stored = shape.split(), list(result[key].shape)
        if len(axes) != len(stored) or not all(_fits(axis, n, sizes) for axis, n in zip(axes, stored, strict=True)):
            return f"{key} has shape {stored}, not [{', '.join(axes)}] with {sizes}"
    tokens = result.get("tokens")
    if schema.tokens_file and tokens is not None and len(tokens) != sizes["T"]:
        return f"it has {len(tokens)} tokens, but {sizes['T']} columns"
    return None


def _fits(axis: str, size: int, sizes: dict[str, int]) -> bool:
    """Whether an axis such as "L" or "L+1" has this size; the first axis with a letter decides what the letter is.

    A letter is at least 1, so that only an axis [L-1] can be empty, in a model of one block.
    """
    if axis == "1":
        return size == 1
    n = size - int(axis[1:] or 0)
    return n > 0 and sizes.setdefault(axis[0], n) == n
