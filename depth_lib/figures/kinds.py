"""What can be drawn of a probe's result: one row a figure, for one run and for a grid of runs alike."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage

from . import panels
from .token_labels import question_of

LAYER = "Layer index $l$"


@dataclass(frozen=True)
class Kind:
    """A figure: the probe and the keys it reads, the mark that draws them, and what is written around and under it.

    options: the mark's own. colorbar: its label, for maps; own_scale: a colour bar a panel. together: the kinds it
    consists of, side by side, instead of keys and mark. shows: kinds that need no figure of their own beside this one.
    of_question: about one question and its answer, not about a dataset. error: a key with each layer's relative error,
    whose layers above the tolerance are marked. size: of a panel in a grid, inches.
    """

    probe: str
    title: str
    caption: str
    keys: tuple[str, ...] = ()
    mark: Callable[..., AxesImage | None] | None = None
    ylabel: str = ""
    xlabel: str = LAYER
    options: Mapping[str, Any] = field(default_factory=dict)
    colorbar: str | None = None
    own_scale: bool = False
    of_question: bool = False
    error: str | None = None
    short: str = ""
    together: tuple[str, ...] = ()
    shows: tuple[str, ...] = ()
    size: tuple[float, float] = (2.3, 1.1)

    def parts(self) -> list["Kind"]:
        """The kinds that stand side by side for one run; itself alone unless it is made of others."""
        return [KINDS[name] for name in self.together] or [self]

    def can_draw(self, result: Mapping) -> bool:
        return all(key in result for part in self.parts() for key in part.keys)

    def draw(self, ax: Axes, result: Mapping) -> AxesImage | None:
        """Draw a result of its probe into axes, with no text around them."""
        curves, options = [panels.values(result[key]) for key in self.keys], dict(self.options)
        if self.error in result:
            tolerance = (result.get("meta") or {}).get("settings", {}).get("tolerance", 0.01)
            options["rough"] = np.flatnonzero(panels.values(result[self.error]) > tolerance)
        return self.mark(ax, curves, result.get("tokens"), **options)

    def subject(self, result: Mapping) -> str:
        """The question that this kind is about; empty where it is about a dataset."""
        return question_of(result) or "" if self.of_question else ""


_MAP = {"ylabel": "Layer skipped", "xlabel": "Effect @ layer", "colorbar": "Relative change", "size": (1.9, 1.9)}
_TOKENS = {"ylabel": LAYER, "xlabel": "Token", "of_question": True, "size": (2.0, 2.4)}
_PARTS = ("rc_att", "rc_mlp", "rc_layer")

KINDS = {
    "cosine": Kind(
        "relative_contribution",
        "Cosine similarity of contributions with the residual stream",
        "Cosine of what attention, MLP and both together add with the residual stream they add it to, mean over "
        "tokens. Below zero features are removed, above zero strengthened; dotted: the effective depth, the last "
        "turn from removing to adding.",
        ("att_cos", "mlp_cos", "layer_cos"),
        panels.parts,
        "Cosine similarity",
        options={
            "labels": (
                "Attention: $\\mathrm{cossim}(a, h)$",
                "MLP: $\\mathrm{cossim}(m, h + a)$",
                "Attention + MLP: $\\mathrm{cossim}(a + m, h)$",
            ),
            "metric": "cosine",
        },
    ),
    "relative_contribution": Kind(
        "relative_contribution",
        "Relative contribution to the residual stream",
        "Norm of what attention, MLP and both together add over the norm of what they read, mean over tokens. Cut at "
        "1.5; a triangle stands over what lies beyond.",
        _PARTS,
        panels.parts,
        "Mean relative contribution",
        options={
            "labels": (
                "Attention: $||a|| / ||h||$",
                "MLP: $||m|| / ||h + a||$",
                "Attention + MLP: $||a + m|| / ||h||$",
            ),
            "top": 1.5,
        },
    ),
    "norms": Kind(
        "relative_contribution",
        "Norms of the residual stream and of contributions",
        "Mean norm over tokens of what enters a block (filled) and of what its attention and MLP add. A first token "
        "that is tens of times as long as the others weighs in this mean as so many of them.",
        ("norm_att", "norm_mlp", "norm_residual"),
        panels.parts,
        "Mean norm",
        options={"labels": ("Attention: $||a||$", "MLP: $||m||$", "Residual stream: $||h||$"), "log": True},
    ),
    "io_cos": Kind(
        "relative_contribution",
        "Cosine of what enters a block with what leaves it",
        "1 less this cosine is ShortGPT's block influence: a high bar is a block that hardly turns the stream.",
        ("io_cos",),
        panels.bars,
        "$\\mathrm{cossim}(h_l, h_{l+1})$",
    ),
    "layer_effects": Kind(
        "layer_effects",
        "Effect of skipping a layer on later layers, at future tokens",
        "Largest relative change of a later layer's contribution (column) at the tokens that follow, when a layer "
        "(row) is skipped for the tokens so far.",
        ("max_future_layer",),
        panels.layer_map,
        short="future tokens",
        **_MAP,
    ),
    "layer_effects_all": Kind(
        "layer_effects",
        "Effect of skipping a layer on later layers, at all tokens",
        "Largest relative change of a later layer's contribution (column) at any token, when a layer (row) is "
        "skipped for all tokens but the first.",
        ("max_all_layer",),
        panels.layer_map,
        short="all tokens",
        **_MAP,
    ),
    "layer_effects_modes": Kind(
        "layer_effects",
        "Effect of skipping a layer on later layers",
        "Left: at the tokens that follow the skipped ones; right: at all tokens, the skipped ones included. Rows "
        "that are dark on the left and bright on the right are layers that serve the current token only.",
        together=("layer_effects", "layer_effects_all"),
        shows=("layer_effects", "layer_effects_all"),
        **_MAP | {"size": (1.4, 1.3)},
    ),
    "output_change": Kind(
        "layer_effects",
        "Effect of skipping a layer on the output, at future tokens",
        "Largest change, in norm, of the output distribution at the tokens that follow, when a layer is skipped for "
        "the tokens so far.",
        ("max_future_out",),
        panels.bars,
        "Output change norm",
        "Layer skipped",
    ),
    "output_change_all": Kind(
        "layer_effects",
        "Effect of skipping a layer on the output, at all tokens",
        "Largest change, in norm, of the output distribution at any token, when a layer is skipped for all tokens "
        "but the first.",
        ("max_all_out",),
        panels.bars,
        "Output change norm",
        "Layer skipped",
    ),
    "output_change_modes": Kind(
        "layer_effects",
        "Effect of skipping a layer on the output",
        "Largest change, in norm, of the output distribution at the tokens that follow the skipped ones (filled), "
        "and at all tokens (line). Where only the line is high, a layer serves the current token only.",
        ("max_future_out", "max_all_out"),
        panels.filled_and_line,
        "Output change norm",
        "Layer skipped",
        options={"labels": ("at future tokens", "at all tokens")},
        shows=("output_change", "output_change_all"),
    ),
    "lens_kl": Kind(
        "logit_lens",
        "KL divergence of the logit lens from the output",
        "KL(p_l || y), nats, of what the model would predict from the input of each layer; the effective depth is "
        "the first layer below half of the maximum.",
        ("res_kl_divs",),
        panels.bars,
        "KL divergence (nats)",
        options={"metric": "kl"},
    ),
    "lens_overlap": Kind(
        "logit_lens",
        "Top-5 overlap of the logit lens with the output",
        "Share of the output's five likeliest tokens among the five of the logit lens; the effective depth is the "
        "first layer above 0.3.",
        ("res_overlaps",),
        panels.bars,
        "Overlap",
        options={"metric": "overlap"},
    ),
    "lens_rank": Kind(
        "logit_lens",
        "Where the output's first token stands in the logit lens",
        "Share of tokens on which logit lens and output agree about the likeliest token, and the mean reciprocal "
        "rank of the output's likeliest token in the logit lens.",
        ("res_top1", "res_mrr"),
        panels.lines,
        "Share, reciprocal rank",
        options={"labels": ("first in both", "mean reciprocal rank")},
    ),
    "residual_erasure": Kind(
        "residual_erasure",
        "Residual erasure",
        "Change of the answer's probabilities, in norm, when the residual stream of one token at one layer (0: the "
        "embeddings) is replaced by an uninformative one.",
        ("erasure_effect",),
        panels.token_map,
        colorbar="Probability difference norm",
        **_TOKENS,
    ),
    "integrated_gradients": Kind(
        "integrated_gradients",
        "Integrated gradients",
        "Attribution of the answer's probability to the residual stream of each token at each layer. Colours end at "
        "the 98th percentile of the tokens after the first, where many models park attention.",
        ("igrads",),
        panels.token_map,
        options={"limits": panels.symmetric, "cmap": "seismic"},
        colorbar="Attribution (to 98th percentile)",
        own_scale=True,
        error="error",
        **_TOKENS,
    ),
}


def find_kind(name: str) -> Kind:
    """The kind of this name; ValueError names those there are."""
    if name not in KINDS:
        raise ValueError(f"no figure is called {name!r}; there are {', '.join(KINDS)}")
    return KINDS[name]
