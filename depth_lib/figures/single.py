"""The marks that a single kind of figure has, each a curve or heat map with something more."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..effective_depth.difficulty import EFFECTS, by_level, importance, score_rows
from ..effective_depth.orders import loss_map
from ..effective_depth.rules import METRICS, as_array, deep_thinking_ratio
from .marks import ORANGE, SKY, Curves, Heat, Kind, Panel, token_label


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
    """The rank of each token of the answer."""

    overlays = False

    def panels(self, result: Mapping) -> dict[str, Panel]:
        tokens = zip(result["tokens"], as_array(result["answer_ranks"]).T, strict=True)
        return {
            "": {f"{k}: {token_label(token)}".replace("$", r"\$"): ranks for k, (token, ranks) in enumerate(tokens, 1)}
        }


class LensTable(Heat):
    """What each layer would say at each place, written where there is room."""

    def can_draw(self, result: Mapping) -> bool:
        return super().can_draw(result) and "top_tokens" in result

    def cells(self, panel: Panel) -> np.ndarray:
        return panel["answer_kl"]

    def words(self, result: Mapping) -> np.ndarray:
        return np.array([[token_label(five[0]) for five in of_layer] for of_layer in result["top_tokens"]])

    def draw(self, ax: Axes, panel: Panel, result: Mapping) -> None:
        super().draw(ax, panel, result)
        rows, columns = panel["answer_kl"].shape
        if 0.09 * rows > ax.bbox.height / ax.figure.dpi or 0.3 * columns > ax.bbox.width / ax.figure.dpi:  # inches
            return
        for (row, column), word in np.ndenumerate(self.words(result)):
            lightness = np.asarray(ax.images[0].norm(panel["answer_kl"][row, column])).item()
            colour = "black" if lightness > 0.6 else "white"
            ax.text(column, row, word, size=5, ha="center", va="center", color=colour, parse_math=False)


class Removal(Heat):
    """The cost of removing n blocks from s on: a row per n, the best s of each marked."""

    def draw(self, ax: Axes, panel: Panel, result: Mapping) -> None:
        super().draw(ax, panel, result)
        loss = panel["removal_loss"]
        ax.plot(np.nanargmin(loss, axis=1), range(len(loss)), "*", color=ORANGE, label="best start")
        ax.set_yticks(range(len(loss)), as_array(result["removal_sizes"]).astype(int))


class Repeats(Heat):
    """The cost of running n blocks from s on twice: a row per n, the cheapest of all marked."""

    def can_draw(self, result: Mapping) -> bool:
        return super().can_draw(result) and len(loss_map(result, "repeats")) > 0

    def panels(self, result: Mapping) -> dict[str, Panel]:
        return {"": {"order_loss": loss_map(result, "repeats").to_numpy()}}

    def draw(self, ax: Axes, panel: Panel, result: Mapping) -> None:
        super().draw(ax, panel, result)
        loss = panel["order_loss"]
        row, column = np.unravel_index(np.nanargmin(loss), loss.shape)
        ax.plot(column, row, "*", color="black", label=f"cheapest: {loss[row, column]:+.3f} nats")
        ax.set_yticks(range(len(loss)), loss_map(result, "repeats").index)


class OrderCurves(Curves):
    """What exchanging two neighbours, running a block twice and leaving it out cost, by the first block changed."""

    overlays = False

    def panels(self, result: Mapping) -> dict[str, Panel]:
        curves = {"exchanged with the next": ("reversals", 2), "twice": ("repeats", 1), "left out": ("removals", 1)}
        maps = {name: (loss_map(result, kind), n) for name, (kind, n) in curves.items()}
        return {"": {name: losses.loc[n].to_numpy() for name, (losses, n) in maps.items() if n in losses.index}}

    def can_draw(self, result: Mapping) -> bool:
        return super().can_draw(result) and bool(self.panels(result)[""])


class PartRemoval(Curves):
    """The cost of removing attention or MLP of ever more blocks, from none on."""

    def panels(self, result: Mapping) -> dict[str, Panel]:
        return {"": {"removal_loss": np.append(0, as_array(result["removal_loss"]))}}


class EffectsByLevel(Heat):
    """The mean effect over the examples of each level, row = layer skipped, column = affected."""

    def panels(self, result: Mapping) -> dict[str, Panel]:
        return {
            f"level {level} (n = {len(effects)})": {"mean_layer_effect": effects.mean(0)}
            for level, effects in by_level(result, as_array(result["layer_effect"])).items()
        }


class ImportanceByLevel(Curves):
    """The mean importance of each layer by level, as a share of that of all layers."""

    overlays = False

    def panels(self, result: Mapping) -> dict[str, Panel]:
        panels = {}
        for effect, where in zip(EFFECTS, ("on later layers", "on the output"), strict=True):
            means = {level: one.mean(0) for level, one in by_level(result, importance(result, effect)).items()}
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
