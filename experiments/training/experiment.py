"""Does training decide how depth is used? Four toys, three seeds: {ordinary, shared} × {loss on all, on answers}.

python -m experiments.training.experiment train --out build/training      trains all twelve, five minutes of a core each
python -m experiments.training.experiment measure --out build/training    measures what is trained there, a minute each
python -m experiments.training.experiment shipped                         measures the four that lie in toys/

`shipped --csv experiments/training/measured.csv` writes these four over their rows there.
"""

import argparse
import random
from itertools import product
from pathlib import Path

import pandas as pd
import torch

from depth_lib.files import write_together
from depth_lib.models.load import load_model

from .measure import measure
from .shared import new_toy, unrolled
from .summary import accuracies, conclusion, largest_difference, load_measured, replaced
from .tasks import TASKS, draw_nested, draw_sum
from .toys import byte_tokenizer
from .trainer import Recipe, train

TOYS = Path(__file__).with_name("toys")
KINDS = {"ordinary": False, "shared": True}
LOSSES = {"all": 1.0, "answers": 0.0}  # weight of the question's tokens
SEEDS = (0, 1, 2)
STEPS, PEAK_RATE = 2000, 2e-3
COMMANDS = """\
# python -m experiments.training.experiment train --out build/training
# python -m experiments.training.experiment measure --out build/training --csv experiments/training/measured.csv
"""
SHIPPED = """\
# Rows of seed 0 are of the toys that ship, measured again:
# python -m experiments.training.experiment shipped --csv experiments/training/measured.csv
# The intervals of depths, scores and slopes in the rows of seeds 1 and 2 are percentiles, of an earlier version.
"""
SUMS = 0.8  # share of flat sums in what is read; the others are nested


def draw(rng: random.Random) -> tuple[str, str]:
    """One training problem: a sum of 2–6 terms, or a nested expression of 1–5 steps."""
    if rng.random() < SUMS:
        return draw_sum(rng, rng.choice(TASKS["sums"].seen), held_out=False)
    return draw_nested(rng, rng.choice(TASKS["nested"].seen), held_out=False)


def train_toy(kind: str, loss: str, seed: int, folder: Path) -> None:
    """Train one toy and save it as an ordinary float16 checkpoint in `folder`; nothing to do where it is there."""
    if (folder / "model.safetensors").exists():
        return
    recipe = Recipe(f"{kind}, loss on {loss}, seed {seed}", seed, STEPS, PEAK_RATE, LOSSES[loss])
    torch.manual_seed(seed)
    model = train(recipe, new_toy(KINDS[kind]), byte_tokenizer(), draw)
    byte_tokenizer().save_pretrained(folder)
    unrolled(model).half().save_pretrained(folder)


def measure_all(folder: Path) -> pd.DataFrame:
    """The measurements of the twelve toys trained in `folder`, each kept beside its checkpoint and not repeated."""
    frames = {}
    for toy in product(KINDS, LOSSES, SEEDS):
        place = folder / "-".join(map(str, toy))
        if not (place / "model.safetensors").exists():
            raise SystemExit(f"{place} has no trained toy; run: python -m experiments.training.experiment train")
        if not (kept := place / "measured.csv").exists():
            _write(kept, measure(load_model(place, dtype="float32")).to_csv(index=False, float_format="%.5g"))
        frames[toy] = pd.read_csv(kept, dtype={"level": str})
        print(f"{place} is measured", flush=True)
    return _by_toy(frames)


def measure_shipped() -> pd.DataFrame:
    """The measurements of the four toys in `TOYS`, seed 0."""
    toys = product(KINDS, LOSSES)
    return _by_toy({(*toy, 0): measure(load_model(TOYS / "-".join(("toy", *toy)), dtype="float32")) for toy in toys})


def _by_toy(frames: dict[tuple[str, str, int], pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(frames, names=["kind", "loss", "seed"]).droplevel(-1).reset_index()


def _write(path: Path, text: str) -> None:
    write_together({path: text.encode()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["train", "measure", "shipped"])
    parser.add_argument("--out", type=Path, default=Path("build/training"))
    parser.add_argument("--csv", type=Path, help="the file to write (measure: by default measured.csv in OUT)")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.what == "train":
        for seed, kind, loss in product(SEEDS, KINDS, LOSSES):
            train_toy(kind, loss, seed, asked.out / f"{kind}-{loss}-{seed}")
    elif asked.what == "measure":
        measured = measure_all(asked.out)
        _write(asked.csv or asked.out / "measured.csv", COMMANDS + measured.to_csv(index=False))
        print(f"{accuracies(measured).to_string(float_format='%.3f')}\n\n{conclusion(measured)}")
    else:
        measured = measure_shipped()
        print(accuracies(measured).to_string(float_format="%.3f"))
        print(f"\nlargest difference from the committed numbers: {largest_difference(measured, load_measured()):.2g}")
        if asked.csv:
            _write(asked.csv, COMMANDS + SHIPPED + replaced(load_measured(), measured).to_csv(index=False))


if __name__ == "__main__":
    main()
