"""What a probe returns: a dict of named tensors that can be drawn, tabulated and saved.

`save` and `plot` go to other modules, which know the file and the figures of each probe; here is only what is asked of
one result.
"""

import io
import re
import textwrap
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import depth_lib

from ..files import write_together
from .schemas import ARTIFACTS, TABLE_PROBES, ArtifactError, parse_name

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_BESIDE = re.compile(r"_(sums|by_prompt|rounding_floor)$")  # keys that stand beside another


class Result(dict[str, Any]):
    """A probe's result: a dict, equal to any with the same values, pickled and stored without this class.

    probe: its name in `ARTIFACTS`.
    """

    def __init__(self, probe: str, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.probe = probe

    def __reduce__(self):
        # torch.load(weights_only=True) accepts an OrderedDict, but no other subclass of dict
        return OrderedDict, (), None, None, iter(self.items())

    def __or__(self, other):
        return Result(self.probe, {**self, **other})

    def plot(self, kind: str | None = None, **how: Any) -> "Axes":
        """Draw it, as `dl.plot` does: a figure of this kind, or the first of `dl.kinds_of(result.probe, result)`.

        how: ax, limits, title. ValueError for a kind whose keys it lacks, or if no kind can draw it.
        """
        kinds = [kind] if kind else depth_lib.kinds_of(self.probe, self)
        if not kinds:
            raise ValueError(f"no figure is drawn of a {self.probe} with {', '.join(self)}; draw its curves yourself")
        return depth_lib.plot(kinds[0], self, **how)

    def depths(self) -> "pd.DataFrame":
        """Its effective depths with intervals: `dl.effective_depths(result)`; ValueError for a probe without."""
        return depth_lib.effective_depths(self)

    def to_frame(self) -> "pd.DataFrame":
        """Its values per layer, a row each: columns layer, key, value (float64) and column, as `dl.load_results`."""
        from .study import frame_of

        return frame_of(self.probe, self)

    def save(self, path: str | Path) -> Path:
        """Write it, whole or not at all, as a plain dict that `torch.load` reads; the file.

        path: a folder, in which the file has its artifact's name; or a file, which `load_artifact` reads if its name is
        an artifact's; one that is there is replaced. What a result that was read has in `meta` stays. ArtifactError as
        `save_artifact`.
        """
        path = Path(path)
        if path.suffix != ".pt":
            if self.probe not in ARTIFACTS:
                raise ValueError(
                    f"a result of {self.probe} has no file of its own; give the name of one, such as mine.pt"
                )
            path /= ARTIFACTS[self.probe].names(self.n_prompts or 1)[0]
        try:
            parse_name(path)
        except ArtifactError:
            buffer = io.BytesIO()
            torch.save(dict(self), buffer)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_together({path: buffer.getvalue()})
            return path
        return depth_lib.save_artifact(path, self, self.get("meta", {}))

    @property
    def n_prompts(self) -> int | None:
        """How many prompts or examples it was computed from; None for a question and its answer."""
        for key, value in self.items():
            if key in ("n_tokens", "level") or key.endswith("_by_prompt"):
                return len(value)
        return None

    def __repr__(self) -> str:
        own = {key: value for key, value in self.items() if torch.is_tensor(value) and not _BESIDE.search(key)}
        of = f" of {self.n_prompts} prompt{'s' * (self.n_prompts > 1)}" if self.n_prompts else ""
        keys = textwrap.shorten(", ".join(f"{key} {[*own[key].shape]}" for key in own), 110, placeholder=" …")
        lines = [f"{self.probe}{of}: {len(self)} keys", keys]
        if own:
            first, values = next(iter(own.items()))
            lines.append(f"{first} is from {np.nanmin(values):.3g} to {np.nanmax(values):.3g}")
        kinds = "|".join(map(repr, depth_lib.kinds_of(self.probe, self)))
        drawn = f".plot({kinds})  " * bool(kinds)
        depths = ".depths()  " * (self.probe in TABLE_PROBES)
        return "\n".join([*lines, f"{drawn}{depths}.to_frame()  .save(path)"])
