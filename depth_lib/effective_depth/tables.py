"""Every effective depth of a study in one frame: csv, page, TeX and workbook are views of it."""

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from ..results.artifacts import read_artifact
from ..results.schemas import BY_RANDOM, ArtifactError
from ..results.study import Study
from .intervals import NoInterval, depth_interval, equal_prompts, open_ends
from .rules import RULES, Rule, as_array, ratio

CONTROL = BY_RANDOM.removeprefix("@")  # the variant of a model with random weights
_WHOLE = ["layers", "prompts", "ed", "low", "high"]
_SHARES = ["ratio", "ratio_low", "ratio_high"]


def depths(study: Study) -> pd.DataFrame:
    """The effective depths of a study: a row for each result and each rule that reads it.

    Columns model, dataset; variant: what a call changed ("lens=jacobian", "weights=random": the control), mostly "";
    then those of `effective_depths`; published: the depth that Hu et al. publish for this model and data set, or NA.
    """
    rows = [
        {"model": model, "dataset": dataset, "variant": variant} | row
        for dataset, model, variant, result in _results(study)
        for row in _rows(result)
    ]
    names = ["model", "dataset", "variant", *_COLUMNS]
    published = published_depths().rename(columns={"ed": "published"}).drop(columns="ratio")
    frame = _typed(rows, names).merge(published, how="left")
    frame["published"] = frame.published.astype("Int64").where(frame.variant == "")
    return frame[[*frame.columns.drop("note"), "note"]]


def _results(study: Study) -> Iterator[tuple[str, str, str, Mapping]]:
    """Dataset, model, variant and result; behind a result its control's, where there is one."""
    for (dataset, model, probe), result in study.items():
        yield dataset, model, probe.partition("@")[2], result
        path = study.paths[dataset, model, probe]
        with suppress(ArtifactError, OSError):  # most have none
            control = read_artifact(path.with_stem(path.stem + BY_RANDOM))
            if control["meta"].get("prompts_hash") == result["meta"].get("prompts_hash"):
                yield dataset, model, CONTROL, control


def published_depths() -> pd.DataFrame:
    """The 108 depths of Hu et al. 2025 (arXiv 2512.14064), Table 1: 12 models × 3 data sets × 3 rules.

    Columns model, dataset, rule, ed, ratio (two decimals), layers.
    """
    return pd.read_csv(Path(__file__).with_name("table1.csv"))


def effective_depths(result: Mapping) -> pd.DataFrame:
    """The depths of one result: a row for each rule that reads it.

    Columns:
    rule; layers, the number of blocks L; prompts;
    ed: the effective depth, a layer (NA: none);
    low, high: its 95% confidence interval over prompts (NA: unbounded, or none);
    ratio: (ED + 1) / L; ratio_low, ratio_high; note: why something is missing;
    passes: of an unrolled model only, the depth in passes, (ED + 1) / B for passes of B blocks; of a pass that lost
    blocks, the share of the others.
    ValueError where no rule reads the result.
    """
    if not (rows := [*_rows(result)]):
        raise ValueError(
            "no effective depth can be computed from this result; use a result from logit_lens or relative_contribution"
        )
    return _typed(rows, _COLUMNS)


def _rows(result: Mapping) -> Iterator[dict]:
    for name, rule in RULES.items():
        if rule.reads(result):
            layers, prompts = len(result[rule.keys[0]]), len(result.get("n_tokens", ())) or None
            row = {"rule": name, "layers": layers, "prompts": prompts, "note": ""} | _depth(rule, result, layers)
            if "layer_passes" in result:
                row["passes"] = _in_passes(row.get("ed"), result["layer_passes"])
            yield row


def _in_passes(ed: int | None, layer_passes: Any) -> float:
    """An effective depth in passes: those before its own, and the share of its own up to it."""
    if ed is None:
        return math.nan
    passes = as_array(layer_passes)
    done, own = passes[: ed + 1], passes[ed]
    return len({*done}) - 1 + (done == own).sum() / (passes == own).sum()


def _depth(rule: Rule, result: Mapping, layers: int) -> dict:
    """Depth, ratio and interval, or the note that says why they are not there."""
    if note := rule.no_signal(result) or rule.impossible(result):
        return {"note": note}
    ed = rule.depth(result)
    if ed is None:
        return {"note": "no layer satisfies the rule"}
    found = {"ed": ed, "ratio": ratio(ed, layers)}
    try:
        low, high = depth_interval(result, rule)
    except NoInterval as reason:
        return found | {"note": f"no interval: {reason}"}
    found |= {"low": low, "high": high, "ratio_low": ratio(low, layers), "ratio_high": ratio(high, layers)}
    notes = [open_ends(low, high), equal_prompts(result, rule)]
    return found | {"note": "; ".join(filter(None, notes))}


_COLUMNS = ["rule", *_WHOLE, *_SHARES, "note"]


def _typed(rows: list[dict], columns: list[str]) -> pd.DataFrame:
    """Whole numbers as Int64, so that one may be missing; the column `passes` where a model has them."""
    columns = columns + ["passes"] * any("passes" in row for row in rows)
    kinds = dict.fromkeys(_WHOLE, "Int64") | dict.fromkeys(_SHARES, float)
    return pd.DataFrame(rows, columns=columns).astype(kinds)
