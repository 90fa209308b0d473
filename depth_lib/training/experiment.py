"""Does training decide how depth is used? Four toys, three seeds: {ordinary, shared} × {loss on all, on answers}.

python -m depth_lib.training.experiment train --out build/training      trains all twelve, an hour or two on two cores
"""

import argparse
import random
from pathlib import Path

import torch

from .shared import new_toy, unrolled
from .tasks import draw_nested, draw_sum
from .toys import byte_tokenizer
from .trainer import Recipe, train

KINDS = {"ordinary": False, "shared": True}
LOSSES = {"all": 1.0, "answers": 0.0}  # weight of the question's tokens
SEEDS = (0, 1, 2)
STEPS, PEAK_RATE = 2000, 2e-3
SEEN_TERMS, UNSEEN_TERMS, SEEN_STEPS = range(2, 7), range(7, 10), range(1, 6)
SUMS = 0.8  # share of flat sums in what is read; the others are nested


def draw(rng: random.Random) -> tuple[str, str]:
    """One training problem: a sum of 2–6 terms, or a nested expression of 1–5 steps."""
    if rng.random() < SUMS:
        return draw_sum(rng, rng.choice(SEEN_TERMS), held_out=False)
    return draw_nested(rng, rng.choice(SEEN_STEPS), held_out=False)


def train_toy(kind: str, loss: str, seed: int, folder: Path) -> None:
    """Train one toy and save it as an ordinary float16 checkpoint in `folder`; nothing to do where it is there."""
    if (folder / "model.safetensors").exists():
        return
    recipe = Recipe(f"{kind}, loss on {loss}, seed {seed}", seed, STEPS, PEAK_RATE, LOSSES[loss])
    torch.manual_seed(seed)
    model = train(recipe, new_toy(KINDS[kind]), byte_tokenizer(), draw, folder)
    byte_tokenizer().save_pretrained(folder)
    unrolled(model).half().save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["train"])
    parser.add_argument("--out", type=Path, default=Path("build/training"))
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--losses", nargs="*", choices=LOSSES, default=list(LOSSES))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    for seed in asked.seeds:
        for kind in asked.kinds:
            for loss in asked.losses:
                train_toy(kind, loss, seed, asked.out / f"{kind}-{loss}-{seed}")


if __name__ == "__main__":
    main()
