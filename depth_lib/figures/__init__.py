"""Pictures of one run (`plot`), of many runs (`grid`, `save_figures`), of their depths, and the papers' own."""

from .card import card_figure
from .compare import (
    linear_maps_figure,
    overview_figure,
    ratio_by_size_figure,
    ratio_by_task_figure,
    ratio_by_training_figure,
    save_comparisons,
)
from .explore import explore
from .grid import grid, plot, save_figures
from .kinds import KINDS, kinds_of
from .paper import PAPER_FIGURES, paper_figure, save_paper_figures

__all__ = [
    "KINDS",
    "PAPER_FIGURES",
    "card_figure",
    "explore",
    "grid",
    "kinds_of",
    "linear_maps_figure",
    "overview_figure",
    "paper_figure",
    "plot",
    "ratio_by_size_figure",
    "ratio_by_task_figure",
    "ratio_by_training_figure",
    "save_comparisons",
    "save_figures",
    "save_paper_figures",
]
