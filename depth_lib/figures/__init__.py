"""Pictures of one run (`plot`), of many runs (`grid`, `save_figures`), of their depths, and the papers' own."""

from .compare import COMPARISONS, linear_maps_figure, save_comparisons
from .grid import grid, plot, save_figures
from .kinds import KINDS, kinds_of
from .paper import PAPER_FIGURES, paper_figure, save_paper_figures

__all__ = [
    "COMPARISONS",
    "KINDS",
    "PAPER_FIGURES",
    "grid",
    "kinds_of",
    "linear_maps_figure",
    "paper_figure",
    "plot",
    "save_comparisons",
    "save_figures",
    "save_paper_figures",
]
