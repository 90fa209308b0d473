"""A study as one tidy frame, for plots and statistics of one's own."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from .schemas import ARTIFACTS, without_pair
from .study import Study


def load_results(
    folder: str | Path, models: Iterable[str] | None = None, datasets: Iterable[str] | None = None
) -> pd.DataFrame:
    """Everything measured per layer under a folder, a row a value, for plots and statistics of one's own.

    Columns model, dataset, probe, layer, key, value (float64), and column: the place along the second axis of a map
    (affected layer of an effect, token of an erasure or attribution; NA for curves). layer counts as in PROBES: row 0
    of an erasure is the embeddings. Values per prompt or example are left out; those per level of difficulty have the
    level in their key, such as mean_layer_effect:3. MissingArtifact if the folder holds nothing.
    """
    study, frames = Study(folder, models, datasets), []
    for probe in study.probes:
        schema = ARTIFACTS[without_pair(probe)]
        shapes = {key: shape for key, shape in (schema.required | schema.optional).items() if shape[0] in "LK"}
        for (dataset, model), result in study.of(probe).items():
            for key, values, shape in _layered(result, shapes):
                frames.append(_tidy(values, shape).assign(model=model, dataset=dataset, probe=probe, key=key))
    order = ["model", "dataset", "probe", "layer", "key", "value", "column"]
    if not frames:
        return pd.DataFrame(columns=order)
    tidy = pd.concat(frames, ignore_index=True)[order]
    return tidy.astype(dict.fromkeys(("model", "dataset", "probe", "key"), "category"))


def _layered(result: Mapping, shapes: Mapping[str, str]) -> Iterator[tuple[str, torch.Tensor, str]]:
    """Key, values and shape of all that has a value a layer; of values per level of difficulty, each level's alone."""
    for key in (key for key in shapes if key in result):
        by_level, _, shape = shapes[key].partition("K ")
        if shape:
            for level, values in zip(result["levels"].int().tolist(), result[key], strict=True):
                yield f"{key}:{level}", values, shape
        elif by_level != "K":
            yield key, result[key], by_level


def _tidy(values: torch.Tensor, shape: str) -> pd.DataFrame:
    values = values.double().reshape(len(values), *(values.shape[1:] or [1])).numpy()  # turn has no layer where L is 1
    layer, column = np.indices(values.shape)
    is_map = len(shape.split()) == 2 and not shape.endswith(" 1")
    column = pd.array(column.ravel(), dtype="Int64") if is_map else pd.array([pd.NA] * values.size, dtype="Int64")
    return pd.DataFrame({"layer": layer.ravel(), "value": values.ravel(), "column": column})
