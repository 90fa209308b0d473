"""What can be drawn of a probe's result: one row a figure, for one run and for a grid of runs alike."""

from collections.abc import Mapping

from . import panels
from .further_kinds import FURTHER_KINDS, GRADIENTS, NORMS, TOKENS
from .kind import Kind
from .skip_kinds import LAYER_SKIPS

_PARTS = ("rc_att", "rc_mlp", "rc_layer")

KINDS = {
    "cosine": Kind(
        "relative_contribution",
        "Cosine similarity of contributions with the residual stream",
        "Cosine of what attention, MLP and both together add with the residual stream they add it to, mean over "
        "tokens. Below zero features are removed, above zero strengthened; dotted: the effective depth, where the "
        "mean of the three turns for the last time from removing to adding.",
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
        options=NORMS,
    ),
    "io_cos": Kind(
        "relative_contribution",
        "Cosine of what enters a block with what leaves it",
        "1 less this cosine is ShortGPT's block influence: a high bar is a block that hardly turns the stream.",
        ("io_cos",),
        panels.bars,
        "$\\mathrm{cossim}(h_l, h_{l+1})$",
    ),
    **LAYER_SKIPS,
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
        **TOKENS,
    ),
    "integrated_gradients": Kind(
        "integrated_gradients",
        "Integrated gradients",
        "Attribution of the answer's probability to the residual stream of each token at each layer. Colours end at "
        "the 98th percentile of the tokens after the first, where many models park attention.",
        ("igrads",),
        panels.token_map,
        error="error",
        **GRADIENTS,
    ),
} | FURTHER_KINDS


def find_kind(name: str) -> Kind:
    """The kind of this name; ValueError names those there are."""
    if name not in KINDS:
        raise ValueError(f"no figure is called {name!r}; there are {', '.join(KINDS)}")
    return KINDS[name]


def kinds_of(probe: str, result: Mapping) -> list[str]:
    """The kinds that can be drawn of a probe's result, without those that another of them shows too."""
    found = {name: kind for name, kind in KINDS.items() if kind.probe == probe and kind.can_draw(result)}
    return [name for name in found if not any(name in kind.shows for kind in found.values())]
