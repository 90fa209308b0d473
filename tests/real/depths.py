"""SmolLM2's effective depths, on three data sets: `python -m tests.real.depths [outputs/real]`.

Writes depths.csv from the results of `make real`.
"""

import sys
from pathlib import Path

from depth_lib.effective_depth.rules import RULES
from depth_lib.effective_depth.tables import depths
from depth_lib.results.study import Study

KEPT, MODEL = Path(__file__).with_name("depths.csv"), "SmolLM2-135M-Instruct"
DATASETS = ("gsm8k", "hellaswag", "aime24")


def turns(result):
    return int(RULES["cosine"].crossed(RULES["cosine"].curve(result)).sum())


def table(study):
    """For each rule and data set the depth with its interval, and how often the mean cosine rises through zero."""
    (model,) = study.models
    found = depths(study).query("variant == ''")
    found["turns"] = [turns(study[dataset, model, "relative_contribution"]) for dataset in found.dataset]
    found["turns"] = found.turns.where(found.rule == "cosine").astype("Int64")
    return found[["rule", "dataset", "ed", "low", "high", "ratio", "turns"]]


def main(folder="outputs/real"):
    table(Study(Path(folder), [MODEL], [*DATASETS])).to_csv(KEPT, index=False, float_format="%.2f")
    print(KEPT)


if __name__ == "__main__":
    main(*sys.argv[1:])
