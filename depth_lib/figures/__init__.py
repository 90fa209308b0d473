"""Pictures of results: what is drawn (kinds.py), how (marks.py), and many side by side (grid.py)."""

from .grid import plot, save_figures, study_figure, summary_figure
from .kinds import KINDS, kinds_of

__all__ = ["KINDS", "kinds_of", "plot", "save_figures", "study_figure", "summary_figure"]
