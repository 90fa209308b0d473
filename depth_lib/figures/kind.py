"""What a row of `KINDS` says of a figure, and how it is drawn."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage

from ..effective_depth.rules import as_array
from .token_labels import question_of

LAYER = "Layer index $l$"


@dataclass(frozen=True)
class Kind:
    """A figure: the probe and the keys it reads, the mark that draws them, and what is written around and under it.

    options: the mark's own. colorbar: its label, for maps; own_scale: a colour bar a panel. together: the kinds it
    consists of, side by side, instead of keys and mark. shows: kinds that need no figure of their own beside this one.
    of_question: about one question and its answer, not about a dataset. error: a key with each layer's relative error,
    whose layers above the tolerance are marked. size: of a panel in a grid, inches. made_by: the call whose result
    has its keys, where one call of the probe may lack some.
    """

    probe: str
    title: str
    caption: str
    keys: tuple[str, ...] = ()
    mark: Callable[..., AxesImage | None] | None = None
    ylabel: str = ""
    xlabel: str = LAYER
    options: Mapping[str, Any] = field(default_factory=dict)
    colorbar: str | None = None
    own_scale: bool = False
    of_question: bool = False
    error: str | None = None
    short: str = ""
    together: tuple["Kind", ...] = ()
    shows: tuple[str, ...] = ()
    size: tuple[float, float] = (2.3, 1.1)
    made_by: str = ""

    def parts(self) -> list["Kind"]:
        """The kinds that stand side by side for one run; itself alone unless it is made of others."""
        return list(self.together) or [self]

    def can_draw(self, result: Mapping) -> bool:
        return all(key in result for part in self.parts() for key in part.keys)

    def draw(self, ax: Axes, result: Mapping) -> AxesImage | None:
        """Draw a result of its probe into axes, with no text around them."""
        curves, options = [as_array(result[key]) for key in self.keys], dict(self.options)
        if self.error in result:
            tolerance = (result.get("meta") or {}).get("settings", {}).get("tolerance", 0.01)
            options["rough"] = np.flatnonzero(as_array(result[self.error]) > tolerance)
        return self.mark(ax, curves, result.get("tokens"), **options)

    def subject(self, result: Mapping) -> str:
        """The question that this kind is about; empty where it is about a dataset."""
        return question_of(result) or "" if self.of_question else ""
