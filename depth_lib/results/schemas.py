"""Each probe's .pt file: its name, its keys and their shapes. A new probe is one more row of ARTIFACTS.

A name says the probe, the number of examples, the question if it is not the papers', and what a call changed:
`layer_effects_10exps@part=mlp.pt`. This module does not import torch, so listing results is fast.
"""

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ..data.prompts import ANSWER, QUESTION
from ..shapes import lacks, misfit, shapes_of


class ArtifactError(Exception):
    """A result cannot be written or read; the message names the file and says what to do next."""


class MissingArtifact(ArtifactError, FileNotFoundError):
    """A result is missing; the message has the command that computes it."""


@dataclass
class Schema:
    """One probe's file: its name without .pt, with `{n}` for the number of examples, and the shape of each key.

    `papers`: the keys that a result must have, the papers' own where they have the probe; `ours`: further ones. Both
    are "shape: key key; shape: key". In a shape, L is the number of blocks, T of tokens, P of prompts and F of those
    long enough for future mode. E is the number of examples on K difficulty levels. Any other letter is one number
    per file.
    `settings`: the arguments that a run passes to the probe. `function`: its public name, if it differs from the
    row's. `reads`: what a run passes of its texts: "prompts", "examples" with difficulty levels, "baseline" prompts,
    or "" for the question alone. `version`: raise it when a mistake in the probe is corrected; older results are then
    computed again.
    """

    file: str
    papers: str
    ours: str = ""
    tokens_file: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)
    function: str = ""
    reads: str = "prompts"
    version: int = 1

    @cached_property
    def required(self) -> dict[str, str]:
        """The shape of each of the papers' keys."""
        return shapes_of(self.papers)

    @cached_property
    def shapes(self) -> dict[str, str]:
        """The shape of every key that a result may have.

        Beside a key there may be `<key>_rounding_floor`, below which values may be rounding, `<key>_sums` over each
        prompt's tokens, and `<key>_by_prompt`. `layer_passes` is the pass of each layer of an unrolled model.
        """
        shapes = {}
        for key, shape in (self.required | shapes_of(self.ours)).items():
            prompts = "F" if "future" in key else "P"
            floor = "L+1" if "erasure" in key else "E" if "_effect" in key else prompts
            shapes |= {key: shape, f"{key}_rounding_floor": floor}
            shapes |= {f"{key}_sums": f"P {shape}", f"{key}_by_prompt": f"{prompts} {shape}"}
        return shapes | {"layer_passes": "L"}

    @property
    def of_pair(self) -> bool:
        """Whether the probe measures a question with its answer, whose label is then part of the file's name."""
        return "question" in self.settings

    @property
    def by_level(self) -> bool:
        """Whether the probe runs on examples with difficulty levels."""
        return self.reads == "examples"

    def name(self, n: int, pair: str = "", changed: str = "") -> str:
        """The file's name. pair: the label of a question, or of two models; changed: `label_of` a changed call."""
        of_question = f"_{pair}" if pair and self.of_pair else ""
        return self.file.format(n=n, pair=pair) + of_question + (f"@{changed}" if changed else "") + ".pt"


_PAIR = {"question": QUESTION, "answer": ANSWER}
MODES = ("future", "all", "remove")
_MODES = {"modes": ["future", "all"]}
_ATTENTION, _MLP = {"part": "attention"}, {"part": "mlp"}
_EFFECTS = (
    "L L: max_future_layer; L 1: max_future_out",
    "L: future_kl; "
    "L L: max_all_layer; L 1: max_all_out; L: all_kl; "
    "L L: max_remove_layer; L 1: max_remove_out; L: remove_kl",
)
_GRADIENTS = ("L T: igrads", "L: completeness f_difference n_nodes n_steps error")
_QUADRATURE = _PAIR | {"quadrature": 0.01}
_REMOVAL = "removal_loss removal_kl removal_top1"
_PART_REMOVAL = f"L: removal_order {_REMOVAL}"

ARTIFACTS = {
    "relative_contribution": Schema(
        "relative_contribution",
        "L: rc_att rc_mlp rc_layer att_cos mlp_cos layer_cos",
        "L: io_cos norm_att norm_mlp; L+1: norm_residual progress; L+1 L+1: angular; "
        "L+1: max_norm_residual; L: max_norm_att max_norm_mlp max_rc_att max_rc_mlp; "
        "L T: first_change; P: n_tokens; 1: chance_cos",
    ),
    "layer_effects": Schema("layer_effects_{n}exps", *_EFFECTS, settings=_MODES),
    "logit_lens": Schema(
        "logitlens_{n}exps",
        "L: res_kl_divs res_overlaps",
        "L: res_top1 res_mrr res_in_top3 res_in_top5 res_in_top10 res_entropy res_jsd res_settled; "
        "P: n_tokens loss shuffled_loss",
    ),
    "residual_erasure": Schema(
        "logit_erasure_{n}exps",
        "L+1 T: erasure_effect",
        "1: n_answer",
        "logit_erasure_tokens_{n}exps",
        settings=_PAIR,
        reads="baseline",
    ),
    "integrated_gradients": Schema(
        "igrads_igrads_{n}exps", *_GRADIENTS, "igrads_tokens_{n}exps", settings=_QUADRATURE, reads=""
    ),
    "answer_lens": Schema(
        "answer_lens_{n}exps",
        "L+1 T: answer_log_probs answer_ranks",
        "L+1 T: answer_kl; L+1 T 5: answer_top",
        "answer_lens_tokens_{n}exps",
        settings=_PAIR,
        reads="",
    ),
    "attention_effects": Schema(
        "attention_effects_{n}exps", *_EFFECTS, settings=_MODES | _ATTENTION, function="layer_effects"
    ),
    "mlp_effects": Schema("mlp_effects_{n}exps", *_EFFECTS, settings=_MODES | _MLP, function="layer_effects"),
    "attention_gradients": Schema(
        "igrads_attention_igrads_{n}exps",
        *_GRADIENTS,
        "igrads_attention_tokens_{n}exps",
        settings=_QUADRATURE | {"at": "attention"},
        reads="",
        function="integrated_gradients",
    ),
    "mlp_gradients": Schema(
        "igrads_mlp_igrads_{n}exps",
        *_GRADIENTS,
        "igrads_mlp_tokens_{n}exps",
        settings=_QUADRATURE | {"at": "mlp"},
        reads="",
        function="integrated_gradients",
    ),
    "local_effects": Schema("local_effects_{n}exps", "L L: max_future_local max_all_local", settings=_MODES),
    "block_removal": Schema(
        "block_removal_{n}exps",
        f"N: removal_sizes; N L: {_REMOVAL}",
        "N L: angular_distance; L: block_influence; P: n_tokens loss shuffled_loss",
        settings={"sizes": "refined"},
    ),
    "block_orders": Schema(
        "block_orders_{n}exps",
        "K J: orders; K: order_loss order_kl order_top1",
        "1: n_layers",
        settings={"orders": "repeats swaps reversals removals"},
    ),
    "attention_removal": Schema(
        "attention_removal_{n}exps", _PART_REMOVAL, settings=_ATTENTION, function="block_removal"
    ),
    "mlp_removal": Schema("mlp_removal_{n}exps", _PART_REMOVAL, settings=_MLP, function="block_removal"),
    "future_erasure": Schema(
        "future_erasure_{n}exps",
        "L+1 T: future_erasure past_erasure",
        tokens_file="future_erasure_tokens_{n}exps",
        settings=_PAIR,
        reads="baseline",
    ),
    "direct_effects": Schema(
        "direct_effects_{n}exps",
        "L T: direct_att direct_mlp",
        "T: answer_log_prob",
        "direct_effects_tokens_{n}exps",
        settings=_PAIR,
        reads="",
    ),
    "block_accuracy": Schema(
        "block_accuracy_{n}exps",
        "K: accuracy change change_low change_high choice_loss",
        "1: unchanged_accuracy chance; P: unchanged_correct; P K: correct_by_prompt",
        reads="choices",
    ),
    "depth_by_difficulty": Schema(
        "depth_by_difficulty_{n}exps",
        "E: level; E L L: layer_effect; E L: output_effect",
        "K: levels; K L L: mean_layer_effect max_layer_effect; K L: mean_output_effect max_output_effect",
        reads="examples",
    ),
}

RECORD = "run.json"  # in a run's folder: what its results were computed with, and the parameters of its last command
RANDOM = {"weights": "random"}  # what a control's call changes
BY_RANDOM = "@weights=random"  # ends the name of its result
TABLE_PROBES = ("relative_contribution", "logit_lens")
LEVEL_PROBES = tuple(probe for probe, row in ARTIFACTS.items() if row.by_level)

# Results that no run makes: of two models, in `out/linear_maps/`, and of choices.
MAPS = Schema(
    "linear_map_{pair}",
    "M N: relative; N: relative_mean best; P: n_tokens; P M N: relative_sums",
    settings={"what": "residual"},
)
CHOICES = Schema("choice_accuracy", "1: chance", "C: correct unchanged_correct; C E: log_probs; 1: acc acc_norm")
SCHEMAS = ARTIFACTS | {"linear_map": MAPS, "choice_accuracy": CHOICES}
_STEMS = {row.file.removesuffix("_{n}exps"): probe for probe, row in ARTIFACTS.items()}


def label_of(changed: Mapping[str, object]) -> str:
    """The label of a changed call, for its result's name: "part=mlp"; a file is a name and a hash of its content."""
    return ",".join(f"{name}={_short(value)}" for name, value in sorted(changed.items()))


def _short(value: Any) -> str:
    """A value for a file's name; of a file, an array or a long value a hash of the content."""
    if hasattr(value, "tolist"):  # an array or a tensor, of which the text is an excerpt
        return _hashed(f"{str(value.dtype).removeprefix('torch.')} {value.tolist()}".encode())
    text = str(value)
    if Path(text).is_file():
        return f"{Path(text).stem}-{_hashed(Path(text).read_bytes())}"
    return text if re.fullmatch(r"[\w.+-]{1,40}", text) else _hashed(text.encode())


def _hashed(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


@dataclass
class ResultName:
    """The parts of a result file's name; `key` is the result's name in a study, such as "residual_erasure:spouse"."""

    probe: str
    pair: str = ""  # the label of a question that is not the papers'
    changed: str = ""  # the label of a call that was changed

    @property
    def key(self) -> str:
        return with_pair(self.probe, self.pair) + (f"@{self.changed}" if self.changed else "")


def parse_name(path: str | Path) -> ResultName:
    """The parts of a file's name; ArtifactError if it is not the name of a result."""
    match = re.fullmatch(r"(.+?)(?:_\d+exps(?:_([a-z0-9_-]+))?)?(?:@(.+))?\.pt", Path(path).name)
    stem, pair, changed = match.groups("") if match else ("", "", "")
    if stem in _STEMS:
        return ResultName(_STEMS[stem], pair, changed)
    if stem.startswith("linear_map"):
        return ResultName("linear_map")
    raise ArtifactError(f"{path} is not the name of a result file; use one of {', '.join(_STEMS)}")


def probe_named(path: str | Path) -> str:
    """The probe that a file's name says; "" for other names."""
    with suppress(ArtifactError):
        return parse_name(path).probe
    return ""


def is_result(path: Path) -> bool:
    """Whether a file has the name of a probe's result."""
    return probe_named(path) in ARTIFACTS


def with_pair(name: str, pair: str) -> str:
    """The name of a probe or metric for another question than the papers', such as `residual_erasure:spouse`."""
    return f"{name}:{pair}" if pair else name


def without_pair(name: str) -> str:
    """The probe or metric in a name made by `with_pair`, or that a result has in a study."""
    return re.split("[:@]", name)[0]


def mismatch(probe: str, result: Mapping, any_mode: bool = False) -> str | None:
    """Where a result first differs from the keys and shapes of its probe; None if it fits.

    any_mode: one of a probe's modes is enough, also one that a run does not measure.
    """
    schema, sizes = SCHEMAS[probe], {}
    modes = MODES if any_mode else ()
    of_modes = [{re.sub("_(future|all)_", f"_{mode}_", key) for key in schema.required} for mode in modes]
    problem = lacks(schema.required, result)
    if problem and not any(keys <= result.keys() for keys in of_modes):
        return problem
    if problem := misfit(schema.shapes, result, sizes):
        return problem
    if "K" in sizes and "levels" in schema.shapes.keys() - result:  # they say what K counts
        return f"it has {next(key for key in result if schema.shapes.get(key, '').startswith('K'))} without levels"
    if "T" in sizes and (n := len(result.get("tokens") or range(sizes["T"]))) != sizes["T"] and schema.tokens_file:
        return f"it has {n} tokens, but {sizes['T']} columns"
    return None
