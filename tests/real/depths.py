"""SmolLM2's effective depths, on three data sets: `python -m tests.real.depths [outputs/real]`.

Writes depths.csv from the results of `make real`.
"""

import sys
from pathlib import Path

from depth_lib.effective_depth.rules import METRICS, PAPER_METRICS
from depth_lib.effective_depth.tables import depths
from depth_lib.results.study import Study

KEPT, MODEL = Path(__file__).with_name("depths.csv"), "SmolLM2-135M-Instruct"
DATASETS = ("gsm8k", "hellaswag", "aime24")


def turns(result):
    rule = METRICS["cosine"]
    return int(rule.crosses(rule.curve([result[key] for key in rule.keys])).sum())


def table(study):
    """Of each rule and dataset the depth with its interval, the share of resampled prompts with the same depth, and how
    often the mean cosine changes from negative to non-negative."""
    (model,) = study.models
    found = depths(study, PAPER_METRICS)
    found["turns"] = [turns(study[dataset, model, "relative_contribution"]) for dataset in found.dataset]
    found["turns"] = found.turns.where(found.metric == "cosine").astype("Int64")
    return found[["metric", "dataset", "ed", "low", "high", "ratio", "same", "turns"]]


def main(folder="outputs/real"):
    table(Study(Path(folder), [MODEL], [*DATASETS])).to_csv(KEPT, index=False, float_format="%.2f")
    print(KEPT)


if __name__ == "__main__":
    main(*sys.argv[1:])
