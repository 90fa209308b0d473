"""The figures of probes' results, a row each: the probe, the keys it reads with their names, labels and caption.

What the fields mean: `Kind`, `Curves` and `Heat` in marks.py; single.py has the marks that only one kind has.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from ..params import not_among
from .marks import INPUT, OUTPUT, Curves, Heat, Kind
from .single import (
    AnswerRanks,
    Cosine,
    DepthScores,
    EffectsByLevel,
    ImportanceByLevel,
    LensTable,
    OrderCurves,
    PartRemoval,
    Removal,
    Repeats,
    Settling,
)

EFFECT = (0.0, 1.0)  # relative change; larger ones share the last colour, as in the papers
CHANGE = (0.0, math.sqrt(2))  # the largest distance of two distributions
SHARE = (0.0, 1.0)

KINDS: dict[str, Kind] = {
    "cosine": Cosine(
        "relative_contribution",
        {
            "att_cos": r"Attention: $\mathrm{cossim}(a, h)$",
            "mlp_cos": r"MLP: $\mathrm{cossim}(m, h + a)$",
            "layer_cos": r"Attention + MLP: $\mathrm{cossim}(a + m, h)$",
        },
        title="Cosine similarity of contributions with the residual stream",
        caption="Cosine of the updates by attention, MLP and both together with the residual stream they update, mean "
        "over tokens. Black: the mean of the three, with a triangle wherever it changes from negative to non-negative. "
        "Dotted: the effective depth, the last of these changes.",
        ylabel="Cosine similarity",
        filled="layer_cos",
        metric="cosine",
    ),
    "relative_contribution": Curves(
        "relative_contribution",
        {
            "rc_att": "Attention: $||a|| / ||h||$",
            "rc_mlp": "MLP: $||m|| / ||h + a||$",
            "rc_layer": "Attention + MLP: $||a + m|| / ||h||$",
        },
        title="Relative contribution to the residual stream",
        caption="Norms of the updates by attention, MLP and both together, relative to the norm of their input, mean "
        "over tokens. The axis ends at 1.5.",
        ylabel="Mean relative contribution",
        filled="rc_layer",
        limits=(0, 1.5),
    ),
    "norms": Curves(
        "relative_contribution",
        {"norm_att": "Attention: $||a||$", "norm_mlp": "MLP: $||m||$", "norm_residual": "Residual stream: $||h||$"},
        title="Norms of the residual stream and of contributions",
        caption="Mean norm over tokens of a block's input (its last point: the output of the last block) and of what "
        "its attention and MLP add. A first token many times longer than the others raises these means, the more the "
        "shorter the prompts are.",
        ylabel="Mean norm",
        filled="norm_residual",
        log=True,
    ),
    "io_cos": Curves(
        "relative_contribution",
        {"io_cos": ""},
        title="Cosine of a block's input with its output",
        caption="1 minus this cosine is the block influence of ShortGPT (Men et al. 2024, arXiv 2403.03853): a block "
        "with a high bar hardly changes the direction of the residual stream.",
        ylabel=r"$\mathrm{cossim}(h_l, h_{l+1})$",
    ),
    "progress": Curves(
        "relative_contribution",
        {"progress": ""},
        title="Progress of the residual stream towards its end",
        caption="How far the residual stream has come before each block along the straight line from the embeddings to "
        "its end, as a share of that line, mean over tokens; a single token may be beyond 1. Marked: the first block "
        "before which it is half or more.",
        ylabel="Progress",
        xlabel=INPUT,
        metric="progress",
        threshold="half of the way",
    ),
    "angular": Heat(
        "relative_contribution",
        {"angular": ""},
        title="Angular distance between residual streams",
        caption="Angle between the residual streams before two blocks, divided by π, mean over tokens: the angular "
        "distance of Gromov et al. (2024, arXiv 2403.17887). Blocks in a dark square hardly change its direction; they "
        "are candidates for removal. Colours end at a right angle.",
        ylabel="From: input of block",
        xlabel="To: input of block",
        colorbar=r"Angular distance / $\pi$",
        limits=(0, 0.5),
    ),
    "layer_effects": Heat(
        "layer_effects",
        {"max_future_layer": "future tokens", "max_all_layer": "all tokens"},
        title="Effect of skipping a layer on later layers",
        caption="Largest relative change of a later layer's contribution (column) when a layer (row) is "
        "skipped. Future tokens: skipped from the second token up to a drawn position, measured "
        "after it. All tokens: skipped for all but the first, measured at all; on the diagonal the change of the layer "
        "itself. White: no effect is possible. A row that is dark at future tokens and bright at all tokens serves "
        "mostly the current token. Colours end at 1.",
        ylabel="Block skipped",
        xlabel="Effect on block",
        colorbar="Relative change",
        limits=EFFECT,
    ),
    "output_change": Curves(
        "layer_effects",
        {"max_future_out": "at future tokens", "max_all_out": "at all tokens"},
        title="Effect of skipping a layer on the output",
        caption="Largest change, in norm, of the output distribution when a layer is "
        "skipped: from the second token up to a drawn position, at the tokens after it (filled), and for all tokens "
        "but the first, at any token (line). A layer where only the line is high serves mostly the current token.",
        ylabel="Output change norm",
        xlabel="Block skipped",
        filled="max_future_out",
        limits=CHANGE,
    ),
    "skip_damage": Curves(
        "layer_effects",
        {"future_kl": "at future tokens", "all_kl": "at all tokens"},
        title="Damage of skipping a layer",
        caption="KL divergence in nats of the output from that with a layer skipped; "
        "mean over tokens, those after the skipped ones (filled) or all (line), then over prompts.",
        ylabel="KL(y || skipped), nats",
        xlabel="Block skipped",
        filled="future_kl",
    ),
    "lens_kl": Curves(
        "logit_lens",
        {"res_kl_divs": ""},
        title="KL divergence of the logit lens from the output",
        caption="KL(p_l || y), nats, between the logit lens's prediction at the input of each block and the output. "
        "Coloured bar: the effective depth, the first layer below half of the maximum.",
        ylabel="KL divergence (nats)",
        xlabel=INPUT,
        metric="kl",
        threshold="half of the maximum",
    ),
    "lens_overlap": Curves(
        "logit_lens",
        {"res_overlaps": ""},
        title="Top-5 overlap of the logit lens with the output",
        caption="Share of the output's five likeliest tokens among the five of the logit lens. Coloured bar: the "
        "effective depth, the first layer above 0.3.",
        ylabel="Overlap",
        xlabel=INPUT,
        metric="overlap",
        threshold="overlap of 0.3",
        limits=SHARE,
    ),
    "lens_settled": Settling(
        "logit_lens",
        {"res_jsd": "divergence", "res_settled": "settled tokens"},
        title="How the logit lens settles",
        caption="Jensen-Shannon divergence of the logit lens from the output, bits, and the share of tokens for which "
        "it has been at most 1/2 at some layer up to this one; dotted: the first layer at which half of them have "
        "settled. Written above: the deep-thinking ratio (arXiv 2602.13517), the share of tokens that settle in the "
        "last 15 % of the layers; with fewer than seven layers, after the last one.",
        ylabel="Divergence (bits), share",
        xlabel=INPUT,
        metric="settling",
        threshold="half of the tokens",
        limits=SHARE,
    ),
    "answer_ranks": AnswerRanks(
        "answer_lens",
        {"answer_ranks": ""},
        title="What each layer would answer",
        caption="Rank of each token of the answer under the lens, where the token before predicts it; 1: it would be "
        "said. The last point is the model's own output.",
        ylabel="Rank of the answer's token",
        xlabel=INPUT,
        log=True,
    ),
    "lens_table": LensTable(
        "answer_lens",
        {"answer_kl": ""},
        title="What each layer would say",
        caption="The token that the lens finds likeliest at the input of each block, above the token that follows in "
        "the text; the top row is the model's own output (nostalgebraist 2020). Colour: KL divergence of the lens from "
        "the output.",
        ylabel=INPUT,
        xlabel="Next token",
        colorbar="KL(lens || output), nats",
        tokens=True,
    ),
    "residual_erasure": Heat(
        "residual_erasure",
        {"erasure_effect": ""},
        title="Residual erasure",
        caption="Change of the answer's probabilities, in norm, when the residual stream of one token at one layer (0: "
        "the embeddings) is replaced by the mean over the tokens of other prompts.",
        ylabel=INPUT,
        xlabel="Token",
        colorbar="Probability difference norm",
        tokens=True,
        limits=CHANGE,
    ),
    "integrated_gradients": Heat(
        "integrated_gradients",
        {"igrads": ""},
        title="Integrated gradients",
        caption="Attribution of the summed probabilities of the answer's tokens to the residual stream of each token "
        "after each layer. Colours end at the 98th percentile of the "
        "tokens after the first, where many models park attention.",
        ylabel=OUTPUT,
        xlabel="Token",
        colorbar="Attribution (to 98th percentile)",
        percentile=98,
        diverging=True,
        tokens=True,
    ),
}
for part, name in (("attention", "attention"), ("mlp", "MLP")):
    for kind in ("layer_effects", "output_change", "skip_damage"):
        row = KINDS[kind]
        texts = {text: getattr(row, text).replace("a layer", f"a layer's {name}") for text in ("title", "caption")}
        KINDS[f"{part}_{kind.removeprefix('layer_')}"] = replace(row, probe=f"{part}_effects", **texts)
    KINDS[f"{part}_gradients"] = replace(
        KINDS["integrated_gradients"],
        probe=f"{part}_gradients",
        title=f"Integrated gradients of what {name} adds",
        caption=KINDS["integrated_gradients"].caption.replace("the residual", f"what {name} adds to the residual", 1),
        ylabel=f"{name[0].upper()}{name[1:]} of block $l$",
    )
    KINDS[f"{part}_removal"] = PartRemoval(
        f"{part}_removal",
        {"removal_loss": ""},
        title=f"Cost of removing the {name} of several blocks",
        caption=f"Rise of the next token's loss after the {name} of one more block is removed, in ascending order of "
        "the loss that each causes alone (LLM-Drop).",
        ylabel="Loss increase, nats",
        xlabel=f"Blocks without {name}",
    )
KINDS |= {
    "local_effects": replace(
        KINDS["layer_effects"],
        probe="local_effects",
        keys={"max_future_local": "future tokens", "max_all_local": "all tokens"},
        title="Direct effect of a layer on later ones",
        caption="Largest relative change of a later layer's contribution (column) when what a layer (row) added is "
        "taken out of that later layer's input alone. Future tokens: taken out from the second token up to a drawn "
        "position, measured after it. All tokens: taken out at all but the first, measured at all. White: no effect is "
        "possible. A row that is dark at future tokens and bright at all tokens is read mostly for the current token. "
        "Colours end at 1.",
        ylabel="Contribution of block taken out",
    ),
    "block_removal": Removal(
        "block_removal",
        {"removal_loss": ""},
        title="Cost of removing consecutive blocks",
        caption="Rise of the next token's loss when n blocks (row) are removed from block s (column) on, mean over "
        "tokens and prompts. White: there are not that many blocks. Star: the best start for each n. Colours end at "
        "the 90th percentile.",
        ylabel="Blocks removed",
        xlabel="First removed block",
        colorbar="Loss increase, nats",
    ),
    "repeats": Repeats(
        "block_orders",
        {"order_loss": ""},
        title="Cost of running consecutive blocks twice",
        caption="Change of the next token's loss when n blocks (row) from block s (column) on run twice in a row, mean "
        "over tokens and prompts. Blue: the loss falls. White: there are not that many blocks. Star: the cheapest of "
        "all, which chance favours. Colours end at the 90th percentile.",
        ylabel="Blocks repeated",
        xlabel="First repeated block",
        colorbar="Loss increase, nats",
        diverging=True,
    ),
    "orders": OrderCurves(
        "block_orders",
        {"order_loss": ""},
        title="Cost of exchanging, repeating and leaving out a block",
        caption="Change of the next token's loss when two neighbouring blocks run in the other order, when a block "
        "runs twice, and when it is left out, mean over tokens and prompts.",
        ylabel="Loss increase, nats",
        xlabel="(First) block",
    ),
    "future_erasure": replace(
        KINDS["residual_erasure"],
        probe="future_erasure",
        keys={"future_erasure": "this token", "past_erasure": "all before it"},
        title="Effect of erasure on all later predictions",
        caption="Largest change, in norm, of any later prediction when the residual stream at one layer is replaced by "
        "the mean over the tokens of the baseline prompts: of this token, or of all tokens before it but the first "
        "(white: there are none). In a sweep the baseline prompts are GSM8K's, as many as the run has; of a model with "
        "runs on several datasets, the first that the study names is shown.",
    ),
    "effects_by_level": EffectsByLevel(
        "depth_by_difficulty",
        {"layer_effect": ""},
        title="Effect of skipping a layer before the answer, by difficulty",
        caption="Relative change of a later layer's contribution (column) from the answer on when a layer (row) is "
        "skipped before it, mean over the examples of a level of difficulty. White: no effect is possible. Colours end "
        "at 1.",
        ylabel="Block skipped",
        xlabel="Effect on block",
        colorbar="Relative change,\nmean over examples",
        limits=EFFECT,
    ),
    "importance_by_level": ImportanceByLevel(
        "depth_by_difficulty",
        dict.fromkeys(("level", "layer_effect", "output_effect"), ""),
        title="Importance of layers by difficulty",
        caption="Effect of skipping a layer before the answer on later layers and on the output, mean over the "
        "examples of a level, as a share of the sum over all layers; a line per level of difficulty, from easy (dark) "
        "to hard (bright).",
        ylabel="Share of all layers' effect",
        xlabel="Block skipped",
    ),
    "depth_score_by_level": DepthScores(
        "depth_by_difficulty",
        {"layer_effect": "on later layers", "output_effect": "on the output"},
        title="Depth score by difficulty",
        caption="Centre of mass over layers of the effect of skipping each before the answer, with 95 % intervals over "
        "examples where there are enough: bars that rise are harder questions that use more depth.",
        ylabel="Layer",
        xlabel="Level of difficulty",
    ),
}


def find_kind(name: str) -> Kind:
    """The kind of this name; ValueError names the nearest, or those there are."""
    if problem := not_among(KINDS, "figure", name):
        raise ValueError(problem)
    return KINDS[name]


def kinds_of(probe: str, result: Mapping) -> list[str]:
    """The kinds that can be drawn of a probe's result.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> dl.kinds_of("logit_lens", dl.logit_lens(llm, prompts))
    ['lens_kl', ...]

    Cost: no forward pass.
    """
    return [name for name, kind in KINDS.items() if kind.probe == probe and kind.can_draw(result)]
