"""Cheap proxies of what a layer is worth against what skipping it really does, a dot a layer."""

from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..effective_depth.rules import as_array
from ..results.study import Study
from .layout import STYLE
from .ratio_panels import PAPER_WIDTH, dataset_marks, legend, mark_of

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
    "Each dot is a layer: across, what a pass without intervention says of it; upwards, how much skipping it for all "
    "tokens but the first changes the output. In the titles Spearman's rank correlation, its mean over models and "
    "datasets and its range: 1 would be a proxy that ranks layers as skipping them does."
)


def proxies_figure(study: Study) -> Figure:
    """Every proxy of `PROXIES` against the change of the output when a layer is skipped, a panel a proxy.

    Titles have Spearman's rank correlation over the layers of a model × dataset: mean, lowest and highest.
    Nothing to compare, as `can_compare` tells, gives empty panels.
    """
    skips = _skips(study)
    with plt.rc_context(STYLE):
        figure = Figure(figsize=(PAPER_WIDTH, 2.9), layout="constrained", dpi=160)
        axes = figure.subplots(1, len(PROXIES), sharey=True)
        figure.suptitle("Cheap proxies against what a skip really does")
        seen: list[str] = []
        for ax, (label, (probe, key, proxy)) in zip(axes, PROXIES.items(), strict=True):
            correlations = []
            for run, result in study.of(probe).items():
                if run in skips and key in result:
                    x, y = proxy(as_array(result[key])), skips[run]
                    colour, shape = mark_of(run[0])
                    ax.plot(x, y, shape, color=colour, markersize=3, alpha=0.6)
                    correlations.append(rank_correlation(x, y))
                    seen += [run[0]]
            if all((line.get_xdata() > 0).all() for line in ax.lines):
                ax.set_xscale("log")  # the first blocks are worth many of the others
                ax.xaxis.get_major_locator().set_params(numticks=4)
                ax.minorticks_off()
            ax.set_xlabel(label)
            ax.set_title(_summary(correlations))
            ax.spines[["top", "right"]].set_visible(False)
        axes[0].set_ylabel("Output change norm when skipped")
        legend(figure, dataset_marks(dict.fromkeys(seen), linewidth=0))
    return figure


def can_compare(study: Study) -> bool:
    """Whether any model × dataset has a proxy and the effect of skipping each layer for all tokens."""
    skips = _skips(study)
    return any(
        run in skips and key in result for probe, key, _ in PROXIES.values() for run, result in study.of(probe).items()
    )


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's rank correlation, ties at their mean rank; nan where one of the two is constant."""
    ranks = pd.DataFrame({"x": x, "y": y}).rank()
    return float(ranks.x.corr(ranks.y)) if ranks.x.std() and ranks.y.std() else float("nan")


def _skips(study: Study) -> dict[tuple[str, str], np.ndarray]:
    """(dataset, model) -> change of the output when each layer is skipped for all tokens but the first, [L]."""
    effects = study.of("layer_effects")
    return {
        run: as_array(result["max_all_out"]).reshape(-1) for run, result in effects.items() if "max_all_out" in result
    }


def _summary(correlations: list[float]) -> str:
    if not np.isfinite(correlations).any():
        return "no rank correlation"
    low, mean, high = np.nanmin(correlations), np.nanmean(correlations), np.nanmax(correlations)
    spread = f" ({low:.2f} to {high:.2f})" if len(correlations) > 1 else ""
    return f"rank correlation {mean:.2f}{spread}"
