"""What can be drawn of a probe's result: one row of `KINDS` per figure, for one run and for a grid of runs alike."""

import textwrap
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..effective_depth.difficulty import importance_by_level, score_rows
from ..effective_depth.rules import as_array, deep_thinking_ratio
from .marks import BLUE, LAYER, ORANGE, SKY, Curves, Heat, Kind, Panel


class Scores(Kind):
    """The depth score of each level of difficulty with its interval, by either effect."""

    def draw(self, ax: Axes, panel: Panel, result: Mapping) -> None:
        reasons = []
        for effect, offset, colour in (("layer", -0.2, SKY), ("output", 0.2, ORANGE)):
            scores = pd.DataFrame(score_rows(result, effect))
            scores = scores.astype(dict.fromkeys(("score", "score_low", "score_high"), float))
            whiskers = [scores.score - scores.score_low, scores.score_high - scores.score]
            label = self.keys[f"{effect}_effect"]
            ax.bar(scores.index + offset, scores.score, 0.36, yerr=whiskers, capsize=2, color=colour, label=label)
            ax.set_xticks(scores.index, scores.level)
            if scores.score_low.isna().all():
                reasons.append(textwrap.fill(scores.answer[0], 28))
        ax.text(0.5, 0.1, "\n".join(dict.fromkeys(reasons)), transform=ax.transAxes, ha="center")


class Removal(Heat):
    """The cost of removing n blocks from s on: a row per n, the best s of each marked."""

    def draw(self, ax: Axes, panel: Panel, result: Mapping) -> None:
        super().draw(ax, panel, result)
        loss = as_array(result["removal_loss"])
        ax.plot(np.nanargmin(loss, axis=1), range(len(loss)), "*", color=ORANGE, label="best start")
        ax.set_yticks(range(len(loss)), as_array(result["removal_sizes"]).astype(int))


class RemovalCurves(Curves):
    """The cost of removing n blocks, by where they start."""

    def draw(self, ax: Axes, panel: Panel, result: Mapping) -> None:
        super().draw(ax, panel, result)
        ax.set_xticks(range(len(result["removal_sizes"])), as_array(result["removal_sizes"]).astype(int))


def _by_start(result: Mapping) -> dict[str, Panel]:
    """The loss of removing n blocks at the best start, at the end of the model, and at a random start."""
    loss, sizes = as_array(result["removal_loss"]), as_array(result["removal_sizes"]).astype(int)
    last = loss[range(len(sizes)), loss.shape[1] - sizes]
    return {"": {"best start": np.nanmin(loss, 1), "last blocks": last, "mean over starts": np.nanmean(loss, 1)}}


class CheapScores(Kind):
    """Scores of one clean pass against the loss, a point per start and number of blocks."""

    def draw(self, ax: Axes, panel: Panel, result: Mapping) -> None:
        for (key, points), colour in zip(_scores_and_losses(result).items(), (BLUE, ORANGE), strict=True):
            ax.plot(points.score, points.loss, ".", markersize=3, color=colour, label=self.keys[key])
        ax.set_yscale("symlog", linthresh=0.1)


def _scores_and_losses(result: Mapping) -> dict[str, pd.DataFrame]:
    """The angular distance of all n and the block influence (n = 1), each beside the loss."""
    loss, angle = as_array(result["removal_loss"]), as_array(result["angular_distance"])
    points = {"angular_distance": {"score": angle.ravel(), "loss": loss.ravel()}}
    points["block_influence"] = {"score": as_array(result["block_influence"]), "loss": loss[0]}
    return {key: pd.DataFrame(columns).dropna() for key, columns in points.items()}


def _rank_correlations(result: Mapping) -> str:
    found = [points.rank().corr().score["loss"] for points in _scores_and_losses(result).values()]
    return "rank correlations {:.2f}, {:.2f}".format(*found)


def _deep_thinking(result: Mapping) -> str:
    settled = as_array(result.get("res_settled", np.nan))
    return f"deep-thinking ratio {deep_thinking_ratio(settled):.2f}" if np.isfinite(settled).all() else ""


def _maps_by_level(result: Mapping) -> dict[str, Panel]:
    """The mean effect over the examples of each level, row = layer skipped, column = affected."""
    levels, effect = as_array(result["level"]), as_array(result["layer_effect"])
    return {
        f"level {level:.0f} (n = {(levels == level).sum()})": {"mean_layer_effect": effect[levels == level].mean(0)}
        for level in np.unique(levels)
    }


def _importance_by_level(result: Mapping) -> dict[str, Panel]:
    """The mean importance of each layer by level, as a share of that of all layers."""
    panels = {}
    for effect, where in (("layer", "on later layers"), ("output", "on the output")):
        means = {f"level {level}": values.mean(0) for level, values in importance_by_level(result, effect).items()}
        panels[where] = {name: mean / (mean.sum() or 1) for name, mean in means.items()}
    return panels


_NORMS = Curves(
    "relative_contribution",
    "Norms of the residual stream and of contributions",
    "Mean norm over tokens of a block's input (filled; last: the output of the last block) and of what its attention "
    "and MLP add. A first token whose norm is tens of times that of the others dominates these means.",
    {"norm_att": "Attention: $||a||$", "norm_mlp": "MLP: $||m||$", "norm_residual": "Residual stream: $||h||$"},
    "Mean norm",
    filled="norm_residual",
    log=True,
)
_SKIPS = Heat(
    "layer_effects",
    "Effect of skipping a layer on later layers",
    "Largest relative change of a later layer's contribution (column) when a layer (row), or the part of it in the "
    "title, is skipped. Future tokens: skipped for the tokens so far, measured at those that follow. All tokens: "
    "skipped for all but the first, measured at all; on the diagonal the change of the layer itself. White: no effect "
    "is possible. A row that is dark at future tokens and bright at all tokens serves the current token only.",
    {"max_future_layer": "future tokens", "max_all_layer": "all tokens"},
    "Layer skipped",
    "Effect @ layer",
    colorbar="Relative change",
)
_OUTPUT_CHANGE = Curves(
    "layer_effects",
    "Effect of skipping a layer on the output",
    "Largest change, in norm, of the output distribution when a layer, or the part of it in the title, is skipped: for "
    "the tokens so far, at the tokens that follow (filled), and for all tokens but the first, at any token (line). A "
    "layer where only the line is high serves the current token only.",
    {"max_future_out": "at future tokens", "max_all_out": "at all tokens"},
    "Output change norm",
    "Layer skipped",
    filled="max_future_out",
)
_SKIP_DAMAGE = Curves(
    "layer_effects",
    "Damage of skipping a layer",
    "KL divergence in nats of the output from that with a layer, or the part of it in the title, skipped; mean over "
    "the tokens that follow the skipped ones (filled) and over all (line).",
    {"future_kl": "at future tokens", "all_kl": "at all tokens"},
    "KL(y || skipped), nats",
    "Layer skipped",
    filled="future_kl",
)
_GRADIENTS = Heat(
    "integrated_gradients",
    "Integrated gradients",
    "Attribution of the answer's probability to the residual stream of each token at each layer, or to what the part "
    "in the title adds to it. Colours end at the 98th percentile of the tokens after the first, where many models park "
    "attention.",
    {"igrads": ""},
    LAYER,
    "Token",
    of_question=True,
    colorbar="Attribution (to 98th percentile)",
    alone=True,
    percentile=98,
    diverging=True,
    tokens=True,
)
_ERASURE = Heat(
    "residual_erasure",
    "Residual erasure",
    "Change of the answer's probabilities, in norm, when the residual stream of one token at one layer (0: the "
    "embeddings) is replaced by the mean over the tokens of other prompts.",
    {"erasure_effect": ""},
    LAYER,
    "Token",
    of_question=True,
    colorbar="Probability difference norm",
    tokens=True,
)


def _of_part(part: str, name: str) -> dict[str, Kind]:
    """Effects of skipping only the attention or MLP of a layer, and the gradients of what it adds."""
    effects, whose = f"{part}_effects", f"a layer's {name}"
    return {
        effects: replace(_SKIPS, probe=effects, title=f"Effect of skipping {whose} on later layers"),
        f"{part}_output_change": replace(
            _OUTPUT_CHANGE, probe=effects, title=f"Effect of skipping {whose} on the output"
        ),
        f"{part}_skip_damage": replace(_SKIP_DAMAGE, probe=effects, title=f"Damage of skipping {whose}"),
        f"{part}_gradients": replace(
            _GRADIENTS, probe=f"{part}_gradients", title=f"Integrated gradients of what {name} adds"
        ),
    }


KINDS: dict[str, Kind] = {
    "cosine": Curves(
        "relative_contribution",
        "Cosine similarity of contributions with the residual stream",
        "Cosine of the updates by attention, MLP and both together with the residual stream they update, mean over "
        "tokens. Black: the mean of the three, with a triangle wherever it changes from negative to non-negative. "
        "Dotted: the effective depth, the last of these changes.",
        {
            "att_cos": "Attention: $\\mathrm{cossim}(a, h)$",
            "mlp_cos": "MLP: $\\mathrm{cossim}(m, h + a)$",
            "layer_cos": "Attention + MLP: $\\mathrm{cossim}(a + m, h)$",
        },
        "Cosine similarity",
        filled="layer_cos",
        metric="cosine",
        depth_at=0.5,
    ),
    "relative_contribution": Curves(
        "relative_contribution",
        "Relative contribution to the residual stream",
        "Norms of the updates by attention, MLP and both together, relative to the norm of their input, mean over "
        "tokens. The axis ends at 1.5.",
        {
            "rc_att": "Attention: $||a|| / ||h||$",
            "rc_mlp": "MLP: $||m|| / ||h + a||$",
            "rc_layer": "Attention + MLP: $||a + m|| / ||h||$",
        },
        "Mean relative contribution",
        filled="rc_layer",
        cut=1.5,
    ),
    "norms": _NORMS,
    "max_norms": replace(
        _NORMS,
        title="Largest norms of the residual stream and of contributions",
        caption="Largest norm over tokens and prompts of a block's input (filled; last: the output of the last block) "
        "and of the updates by its attention and MLP.",
        keys={f"max_{key}": label for key, label in _NORMS.keys.items()},
        ylabel="Largest norm",
        filled="max_norm_residual",
    ),
    "max_contribution": Curves(
        "relative_contribution",
        "Largest relative contribution to the residual stream",
        "Largest norm, over tokens and prompts, of the updates by attention and MLP, relative to the norm of their "
        "input.",
        {"max_rc_att": "Attention: $||a|| / ||h||$", "max_rc_mlp": "MLP: $||m|| / ||h + a||$"},
        "Largest relative contribution",
        log=True,
    ),
    "io_cos": Curves(
        "relative_contribution",
        "Cosine of a block's input with its output",
        "1 minus this cosine is the block influence of ShortGPT (Men et al. 2024, arXiv 2403.03853): a block with a "
        "high bar hardly changes the direction of the residual stream.",
        {"io_cos": ""},
        "$\\mathrm{cossim}(h_l, h_{l+1})$",
    ),
    "progress": Curves(
        "relative_contribution",
        "Progress of the residual stream towards its end",
        "Fraction of the path from the embeddings to the final residual stream that is covered before each block, mean "
        "over tokens. Marked: the first block before which half is covered.",
        {"progress": ""},
        "Progress",
        metric="progress",
    ),
    "angular": Heat(
        "relative_contribution",
        "Angular distance between residual streams",
        "arccos of the cosine of the residual streams before two blocks over pi, mean over tokens: the angular "
        "distance of Gromov et al. (2024, arXiv 2403.17887). Blocks in a dark square hardly change its direction; they "
        "are candidates for removal.",
        {"angular": ""},
        "From layer",
        "To layer",
        colorbar="Angular distance / $\\pi$",
    ),
    "first_change": Heat(
        "relative_contribution",
        "Change of direction of the residual stream at each token of the first prompt",
        "1 minus the cosine of a block's input with its output, at each token of the first prompt. Colours end "
        "at the 90th percentile of the tokens after the first.",
        {"first_change": ""},
        LAYER,
        "Token",
        colorbar="$1 - \\mathrm{cossim}(h_l, h_{l+1})$",
        alone=True,
        tokens=True,
    ),
    "layer_effects": _SKIPS,
    "output_change": _OUTPUT_CHANGE,
    "skip_damage": _SKIP_DAMAGE,
    "lens_kl": Curves(
        "logit_lens",
        "KL divergence of the logit lens from the output",
        "KL(p_l || y), nats, between the logit lens's prediction at the input of each layer and the output. Marked: "
        "the effective depth, the first layer below half of the maximum.",
        {"res_kl_divs": ""},
        "KL divergence (nats)",
        metric="kl",
    ),
    "lens_overlap": Curves(
        "logit_lens",
        "Top-5 overlap of the logit lens with the output",
        "Share of the output's five likeliest tokens among the five of the logit lens; the effective depth is the "
        "first layer above 0.3.",
        {"res_overlaps": ""},
        "Overlap",
        metric="overlap",
    ),
    "lens_rank": Curves(
        "logit_lens",
        "Rank of the output's top token in the logit lens",
        "Fraction of tokens whose most likely output token is among the top 1, 3, 5 and 10 of the logit lens, and the "
        "mean reciprocal rank of that token.",
        {
            "res_top1": "first",
            "res_in_top3": "first 3",
            "res_in_top5": "first 5",
            "res_in_top10": "first 10",
            "res_mrr": "mean reciprocal rank",
        },
        "Share, reciprocal rank",
    ),
    "lens_entropy": Curves(
        "logit_lens",
        "Entropy of the logit lens",
        "Entropy of the logit lens's prediction at the input of each layer, nats, mean over tokens.",
        {"res_entropy": ""},
        "Entropy (nats)",
    ),
    "lens_settled": Curves(
        "logit_lens",
        "How the logit lens settles",
        "Jensen-Shannon divergence of the logit lens from the output, bits, and the share of tokens for which it "
        "has been at most 1/2 at some layer up to this one; dotted: the first layer at which half of them have "
        "settled. Written above: the deep-thinking ratio (arXiv 2602.13517), the share of tokens that settle in the "
        "last 15 % of the layers; with fewer than seven layers, after the last one.",
        {"res_jsd": "divergence", "res_settled": "settled tokens"},
        "Divergence (bits), share",
        metric="settling",
        note=_deep_thinking,
    ),
    "residual_erasure": _ERASURE,
    "integrated_gradients": _GRADIENTS,
    **_of_part("attention", "attention"),
    **_of_part("mlp", "MLP"),
    "local_effects": replace(
        _SKIPS,
        probe="local_effects",
        title="Direct effect of a layer on later ones",
        caption="Largest relative change of a later layer's contribution (column) when what a layer (row) added is "
        "taken out of that later layer's input alone. Future tokens: taken out at the tokens so far, measured at those "
        "that follow. All tokens: taken out at all but the first, measured at all. White: no effect is possible. A row "
        "that is dark at future tokens and bright at all tokens is read for the current token only.",
        keys={"max_future_local": "future tokens", "max_all_local": "all tokens"},
        ylabel="Contribution taken out",
    ),
    "block_removal": Removal(
        "block_removal",
        "Cost of removing consecutive blocks",
        "Rise of the next token's loss when n blocks (row) are removed from block s (column) on, mean over tokens and "
        "prompts. White: there are not that many blocks. Star: the best start for each n.",
        {"removal_loss": ""},
        "Blocks removed",
        "First removed block",
        colorbar="Loss increase, nats",
        alone=True,
    ),
    "removal_curves": RemovalCurves(
        "block_removal",
        "Cost of removing n blocks",
        "Rise of the next token's loss when n consecutive blocks are removed: from the best start, from the end of the "
        "model, and the mean over all starts.",
        {"removal_loss": ""},
        "Loss increase, nats",
        "Blocks removed",
        read=_by_start,
    ),
    "removal_scores": CheapScores(
        "block_removal",
        "Scores of one clean pass and the cost of removal",
        "Angular distance between the residual streams before and after the removed blocks (Gromov et al. 2024, arXiv "
        "2403.17887, all n) and block influence (ShortGPT, Men et al. 2024, arXiv 2403.03853, n = 1) against the rise "
        "of the loss, with their rank correlations.",
        {"angular_distance": "angular distance", "block_influence": "block influence"},
        "Loss increase, nats",
        "Score",
        note=_rank_correlations,
    ),
    **{
        f"{part}_removal": Curves(
            f"{part}_removal",
            f"Cost of removing the {name} of several blocks",
            f"Rise of the next token's loss after the {name} of one more block is removed, in ascending order of the "
            "loss that each causes alone (LLM-Drop).",
            {"removal_loss": ""},
            "Loss increase, nats",
            f"Blocks without {name}",
            read=lambda result: {"": {"removal_loss": np.append(0, as_array(result["removal_loss"]))}},
        )
        for part, name in (("attention", "attention"), ("mlp", "MLP"))
    },
    "future_erasure": replace(
        _ERASURE,
        probe="future_erasure",
        title="Effect of erasure on all later predictions",
        caption="Largest change, in norm, of any later prediction when the residual stream at one layer is replaced by "
        "the mean over the tokens of the baseline prompts: of this token, or of all tokens before it but the first "
        "(white: there are none). In a sweep the baseline prompts are GSM8K's, as many as the run has; of a model with "
        "runs on several datasets, the first that the study names is shown.",
        keys={"future_erasure": "this token", "past_erasure": "all before it"},
    ),
    "effects_by_level": Heat(
        "depth_by_difficulty",
        "Effect of skipping a layer before the answer, by difficulty",
        "Relative change of a later layer's contribution (column) from the answer on when a layer (row) is skipped "
        "before it, mean over the examples of a level of difficulty. White: no effect is possible.",
        {"layer_effect": ""},
        "Layer skipped",
        "Effect @ layer",
        colorbar="Relative change,\nmean over examples",
        read=_maps_by_level,
    ),
    "importance_by_level": Curves(
        "depth_by_difficulty",
        "Importance of layers by difficulty",
        "Effect of skipping a layer before the answer on later layers and on the output, mean over the examples of a "
        "level, as a share of the sum over all layers; a line per level of difficulty, from easy (dark) to hard "
        "(bright).",
        {"level": "", "layer_effect": "", "output_effect": ""},
        "Share of all layers' effect",
        "Layer skipped",
        read=_importance_by_level,
    ),
    "depth_score_by_level": Scores(
        "depth_by_difficulty",
        "Depth score by difficulty",
        "Centre of mass over layers of the effect of skipping each before the answer, with 95 % intervals over "
        "examples where there are enough: bars that rise are harder questions that use more depth.",
        {"layer_effect": "on later layers", "output_effect": "on the output"},
        "Layer",
        "Level of difficulty",
    ),
}


def find_kind(name: str) -> Kind:
    """The kind of this name; ValueError names those there are."""
    if name not in KINDS:
        raise ValueError(f"no figure is called {name!r}; there are {', '.join(KINDS)}")
    return KINDS[name]


def kinds_of(probe: str, result: Mapping) -> list[str]:
    """The kinds that can be drawn of a probe's result."""
    return [name for name, kind in KINDS.items() if kind.probe == probe and kind.can_draw(result)]
