"""The marks that a single kind of figure has, each a curve or heat map with something more."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..effective_depth.difficulty import EFFECTS, importance_by_level, score_rows
from ..effective_depth.orders import loss_map
from ..effective_depth.rules import METRICS, as_array, deep_thinking_ratio
from .marks import BLUE, ORANGE, SKY, Curves, Heat, Kind, Panel, token_label


class Cosine(Curves):
    """The three cosines, their mean, which the rule reads, and each layer where the mean crosses zero upwards."""

    depth_at = 0.5  # between the layers before and after the change of sign

    def mark_depth(self, ax: Axes, panel: Panel, result: Mapping) -> None:
        metric = METRICS["cosine"]
        mean = metric.curve(list(panel.values()))
        if np.isfinite(mean).all():
            ax.plot(mean, color="black", linewidth=0.8, label="mean of the three")
            turns = np.flatnonzero(metric.crosses(mean))
            if turns.size:
                ax.plot(turns + self.depth_at, 0 * turns, "k^", markersize=4, label="mean crosses zero upwards")
        super().mark_depth(ax, panel, result)


class Settling(Curves):
    """How tokens settle, with the deep-thinking ratio."""

    def note(self, result: Mapping) -> str:
        settled = as_array(result.get("res_settled", np.nan))
        return f"deep-thinking ratio {deep_thinking_ratio(settled):.2f}" if np.isfinite(settled).all() else ""


class AnswerRanks(Curves):
    """The rank of each token of the answer, and the likeliest token where another was before."""

    overlays = False

    def panels(self, result: Mapping) -> dict[str, Panel]:
        tokens = zip(result["tokens"], as_array(result["answer_ranks"]).T, strict=True)
        return {"": {f"{k}: {token_label(token)}": ranks for k, (token, ranks) in enumerate(tokens, 1)}}

    def draw(self, ax: Axes, panel: Panel, result: Mapping) -> None:
        super().draw(ax, panel, result)
        for k, ranks in enumerate(panel.values()):
            likeliest = [of_layer[k][0] for of_layer in result.get("top_tokens", ())]
            for l, token in enumerate(likeliest):
                if [token] != likeliest[l - 1 : l]:
                    ax.annotate(token_label(token), (l, ranks[l]), fontsize=5, rotation=45)


class Removal(Heat):
    """The cost of removing n blocks from s on: a row per n, the best s of each marked."""

    def draw(self, ax: Axes, panel: Panel, result: Mapping) -> None:
        super().draw(ax, panel, result)
        loss = as_array(result["removal_loss"])
        ax.plot(np.nanargmin(loss, axis=1), range(len(loss)), "*", color=ORANGE, label="best start")
        ax.set_yticks(range(len(loss)), _sizes(result))


class RemovalCurves(Curves):
    """The cost of removing n blocks at the best start, at the end of the model, and at a random start."""

    overlays = False

    def panels(self, result: Mapping) -> dict[str, Panel]:
        loss, sizes = as_array(result["removal_loss"]), _sizes(result)
        last = loss[range(len(sizes)), loss.shape[1] - sizes]
        return {"": {"best start": np.nanmin(loss, 1), "last blocks": last, "mean over starts": np.nanmean(loss, 1)}}

    def draw(self, ax: Axes, panel: Panel, result: Mapping) -> None:
        super().draw(ax, panel, result)
        sizes = _sizes(result)
        ax.set_xticks(range(len(sizes)), sizes)


class Repeats(Heat):
    """The cost of running n blocks from s on twice: a row per n, the cheapest of all marked."""

    def can_draw(self, result: Mapping) -> bool:
        return super().can_draw(result) and len(loss_map(result, "repeats")) > 0

    def panels(self, result: Mapping) -> dict[str, Panel]:
        return {"": {"order_loss": loss_map(result, "repeats").to_numpy()}}

    def draw(self, ax: Axes, panel: Panel, result: Mapping) -> None:
        super().draw(ax, panel, result)
        losses = loss_map(result, "repeats")
        row, column = np.unravel_index(np.nanargmin(losses), losses.shape)
        ax.plot(column, row, "*", color="black", label=f"cheapest: {losses.iloc[row, column]:+.3f} nats")
        ax.set_yticks(range(len(losses)), losses.index)


class OrderCurves(Curves):
    """What exchanging two neighbours, running a block twice and leaving it out cost, by the first block changed."""

    overlays = False

    def panels(self, result: Mapping) -> dict[str, Panel]:
        curves = {"exchanged with the next": ("reversals", 2), "twice": ("repeats", 1), "left out": ("removals", 1)}
        maps = {name: (loss_map(result, kind), n) for name, (kind, n) in curves.items()}
        return {"": {name: losses.loc[n].to_numpy() for name, (losses, n) in maps.items() if n in losses.index}}

    def can_draw(self, result: Mapping) -> bool:
        return super().can_draw(result) and bool(self.panels(result)[""])


def _sizes(result: Mapping) -> np.ndarray:
    return as_array(result["removal_sizes"]).astype(int)


class PartRemoval(Curves):
    """The cost of removing attention or MLP of ever more blocks, from none on."""

    def panels(self, result: Mapping) -> dict[str, Panel]:
        return {"": {"removal_loss": np.append(0, as_array(result["removal_loss"]))}}


class CheapScores(Kind):
    """Scores of one clean pass against the loss, a point per start and number of blocks."""

    def draw(self, ax: Axes, panel: Panel, result: Mapping) -> None:
        for (key, points), colour in zip(self._points(result).items(), (BLUE, ORANGE), strict=True):
            ax.plot(points.score, points.loss, ".", markersize=3, color=colour, label=self.keys[key])
        ax.set_yscale("symlog", linthresh=0.1)

    def note(self, result: Mapping) -> str:
        correlations = [points.rank().corr().score["loss"] for points in self._points(result).values()]
        return "rank correlations {:.2f}, {:.2f}".format(*correlations)

    def _points(self, result: Mapping) -> dict[str, pd.DataFrame]:
        """The angular distance of all n and the block influence (n = 1), each beside the loss."""
        loss = as_array(result["removal_loss"])
        losses = {"angular_distance": loss, "block_influence": loss[0]}
        return {
            key: pd.DataFrame({"score": as_array(result[key]).ravel(), "loss": loss.ravel()}).dropna()
            for key, loss in losses.items()
        }


class EffectsByLevel(Heat):
    """The mean effect over the examples of each level, row = layer skipped, column = affected."""

    def panels(self, result: Mapping) -> dict[str, Panel]:
        levels, effect = as_array(result["level"]), as_array(result["layer_effect"])
        return {
            f"level {level:.0f} (n = {(levels == level).sum()})": {"mean_layer_effect": effect[levels == level].mean(0)}
            for level in np.unique(levels)
        }


class ImportanceByLevel(Curves):
    """The mean importance of each layer by level, as a share of that of all layers."""

    overlays = False

    def panels(self, result: Mapping) -> dict[str, Panel]:
        panels = {}
        for effect, where in zip(EFFECTS, ("on later layers", "on the output"), strict=True):
            means = {level: values.mean(0) for level, values in importance_by_level(result, effect).items()}
            panels[where] = {f"level {level}": mean / (mean.sum() or 1) for level, mean in means.items()}
        return panels


class DepthScores(Kind):
    """The depth score of each level of difficulty with its interval, by either effect."""

    def draw(self, ax: Axes, panel: Panel, result: Mapping) -> None:
        for effect, offset, colour in zip(EFFECTS, (-0.2, 0.2), (SKY, ORANGE), strict=True):
            scores = pd.DataFrame(score_rows(result, effect))
            score, low, high = (scores[name].astype(float) for name in ("score", "score_low", "score_high"))
            label = self.keys[f"{effect}_effect"]
            places = scores.index + offset
            ax.bar(places, score, 0.36, yerr=[score - low, high - score], capsize=2, color=colour, label=label)
        ax.set_xticks(scores.index, scores.level)
