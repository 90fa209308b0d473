"""Cheap proxies of what a layer is worth against what skipping it really does, a dot a layer."""

from collections.abc import Callable, Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from ..effective_depth.rules import as_array
from ..results.study import Study
from .layout import STYLE
from .ratio_panels import GREY, OKABE_ITO, PAPER_WIDTH, mark_of

# What one clean pass tells of each layer: the axis label, the probe, its key, and the proxy made of that.
PROXIES: dict[str, tuple[str, str, Callable[[np.ndarray], np.ndarray]]] = {
    "Block influence, 1 − $\\mathrm{cossim}(h_l, h_{l+1})$": (
        "relative_contribution",
        "io_cos",
        lambda curve: 1 - curve,
    ),
    "Relative contribution, $||a + m|| / ||h||$": ("relative_contribution", "rc_layer", lambda curve: curve),
    "Fall of the lens' KL divergence (nats)": ("logit_lens", "res_kl_divs", lambda curve: -np.diff(curve, append=0)),
}
CAPTION = (
    "Each dot is a layer: across, what a pass without intervention says of it; upwards, what skipping it for all "
    "tokens but the first does: KL divergence in nats of the output from that with the layer skipped, mean over "
    "tokens; or, where a result lacks that, the largest change of the output over tokens, in norm, which ends at √2. "
    "A colour a model, a shape a dataset. In the titles Spearman's rank correlation, its mean over models and datasets "
    "and its range: 1 would be a proxy that ranks layers as skipping them does."
)


def proxies_figure(study: Study) -> Figure:
    """Every proxy of `PROXIES` against what skipping a layer does to the output, a panel a proxy.

    That is the mean damage, or where any result lacks it the largest change. Titles have Spearman's rank correlation
    over the layers of a model × dataset: mean, lowest and highest. Nothing to compare, as `can_compare` tells, gives
    empty panels.
    """
    skips, damage = _skips(study)
    colours = _colours(study.models)
    with plt.rc_context(STYLE):
        figure = Figure(figsize=(PAPER_WIDTH, 2.9), layout="constrained", dpi=160)
        axes = figure.subplots(1, len(PROXIES), sharey=True)
        figure.suptitle("Cheap proxies against what a skip really does")
        seen: list[tuple[str, str]] = []
        for ax, (label, (probe, key, proxy)) in zip(axes, PROXIES.items(), strict=True):
            correlations = []
            for run, result in study.of(probe).items():
                if run in skips and key in result:
                    x, y = proxy(as_array(result[key])), skips[run]
                    ax.plot(x, y, mark_of(run[0])[1], color=colours[run[1]], markersize=3, alpha=0.7)
                    correlations.append(rank_correlation(x, y))
                    seen += [run]
            _spread(ax.xaxis, [line.get_xdata() for line in ax.lines])
            if damage:
                _spread(ax.yaxis, [line.get_ydata() for line in ax.lines])
            ax.set_xlabel(label)
            ax.set_title(_summary(correlations))
            ax.spines[["top", "right"]].set_visible(False)
        axes[0].set_ylabel("KL(y || skipped), nats, mean" if damage else "Output change norm when skipped, largest")
        _legend(figure, seen, colours)
    return figure


def can_compare(study: Study) -> bool:
    """Whether any model × dataset has a proxy and the effect of skipping each layer for all tokens."""
    skips, _ = _skips(study)
    return any(
        run in skips and key in result for probe, key, _ in PROXIES.values() for run, result in study.of(probe).items()
    )


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's rank correlation, ties at their mean rank; nan where one of the two is constant."""
    ranks = pd.DataFrame({"x": x, "y": y}).rank()
    return float(ranks.x.corr(ranks.y)) if ranks.x.std() and ranks.y.std() else float("nan")


def _skips(study: Study) -> tuple[dict[tuple[str, str], np.ndarray], bool]:
    """(dataset, model) -> what skipping each layer for all tokens but the first does, [L]; whether it is the damage."""
    effects = {run: result for run, result in study.of("layer_effects").items() if "max_all_out" in result}
    damage = all("all_kl" in result for result in effects.values())
    key = "all_kl" if damage else "max_all_out"
    return {run: as_array(result[key]).reshape(-1) for run, result in effects.items()}, damage


def _spread(axis: Axis, values: list[np.ndarray]) -> None:
    """A logarithmic scale where all values allow it: the first blocks are worth many of the others."""
    if values and np.concatenate(values).min() > 0:
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        axis.get_major_locator().set_params(numticks=4)
        axis.set_minor_locator(NullLocator())


def _colours(models: list[str]) -> dict[str, object]:
    palette = OKABE_ITO if len(models) <= len(OKABE_ITO) else plt.get_cmap("tab20").colors
    return {model: palette[k % len(palette)] for k, model in enumerate(models)}


def _legend(figure: Figure, seen: list[tuple[str, str]], colours: Mapping[str, object]) -> None:
    """A colour a model and a shape a dataset, of those that are drawn."""
    look = {"linestyle": "none", "markersize": 4}
    marks = [
        Line2D([], [], color=colours[model], marker="o", label=model.replace("$", r"\$"), **look)
        for model in dict.fromkeys(model for _, model in seen)
    ]
    marks += [
        Line2D([], [], color=GREY, marker=mark_of(dataset)[1], label=dataset, **look)
        for dataset in dict.fromkeys(dataset for dataset, _ in seen)
    ]
    columns = min(4, max(len(marks), 1))
    figure.set_figheight(2.7 + 0.17 * -(-len(marks) // columns))
    figure.legend(handles=marks, loc="outside lower center", ncols=columns, frameon=False, fontsize=7)


def _summary(correlations: list[float]) -> str:
    if not np.isfinite(correlations).any():
        return "no rank correlation"
    low, mean, high = np.nanmin(correlations), np.nanmean(correlations), np.nanmax(correlations)
    spread = f" ({low:.2f} to {high:.2f})" if len(correlations) > 1 else ""
    return f"rank correlation {mean:.2f}{spread}"
