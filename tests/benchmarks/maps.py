"""Linear maps from 12 to 24 blocks: `make bench BENCH=maps TOKENS=20000`.

Ours and the floor take turns block of text by block of text, so that what disturbs the machine disturbs both. The floor
is what cannot be avoided: both models' forward passes, and in float64, for each pair of layers, half of XᵀWX (it is
symmetric) with XᵀWY on tokens to fit, W x on those to test. Not counted: weights, factorisations, norms, copies.
"""

import argparse
import os
import random
import time
import warnings
from functools import partial

import torch

import depth_lib as dl
from depth_lib.model_maps import maps
from tests.benchmarks.shapes import model_of


class Turns:
    """Stands where linear_maps walks over its blocks; `seconds` of both ways, and by part of the floor."""

    def __init__(self, source, target):
        self.models, self.seconds = (source, target), {"ours": 0.0, "forward": 0.0, "products": 0.0}
        self.n_pairs = (len(source.blocks) + 1) * (len(target.blocks) + 1)

    def over(self, blocks, work):
        for number in blocks:
            self._time("forward", self._forwards, work[number].ids)
            self._time("products", self._products, sum(map(len, work[number].ids)), work[number].split == "test")
            began = time.perf_counter()
            yield number
            self.seconds["ours"] += time.perf_counter() - began
            floor = self.seconds["forward"] + self.seconds["products"]
            print(f"block {number + 1} of {len(work)}: {self.seconds['ours'] / floor:.2f}", flush=True)

    def _time(self, part, run, *work):
        ready = run(*work)
        began = time.perf_counter()
        for step in ready:
            step()
        self.seconds[part] += time.perf_counter() - began

    def _forwards(self, sequences):
        return [
            partial(torch.no_grad()(llm._module.model), torch.tensor([ids]), use_cache=False)
            for llm in self.models
            for ids in sequences
        ]

    def _products(self, n, testing):
        rows, d_target = (llm.config.hidden_size + k for llm, k in zip(self.models, (1, 0), strict=True))
        columns = d_target if testing else d_target + rows // 2
        x, y = torch.randn(n, rows, dtype=torch.float64), torch.randn(n, columns, dtype=torch.float64)
        moments = torch.zeros(rows, columns, dtype=torch.float64)
        one = partial(torch.mm, x, moments, out=y) if testing else partial(moments.addmm_, x.T, y)
        return [one] * self.n_pairs


def measure(n_tokens, shape="small", blocks=(12, 24)):
    """Seconds of `ours` and of the floor's parts, and all that ours does outside its blocks of text, `beside`."""
    source, target = (model_of(shape, blocks=n) for n in blocks)
    draw = random.Random(0)
    texts = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz .,", k=512)) for _ in range(-(-n_tokens // 512))]
    turns, steps, blocks_of = Turns(source, target), maps.steps, maps._blocks
    work = []
    maps._blocks = lambda sequences: (work.extend(blocks_of(sequences)), work)[1]
    maps.steps = lambda numbers, label: turns.over(numbers, work)
    try:
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of few tokens
            dl.linear_maps(source, target, texts, memory=8 * 10**9)
        turns.seconds["beside"] = time.perf_counter() - began - sum(turns.seconds.values())
    finally:
        maps.steps, maps._blocks = steps, blocks_of
    return turns.seconds


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.maps", description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=int(os.environ.get("TOKENS", 20_000)), help="TOKENS")
    parser.add_argument("--threads", type=int, default=int(os.environ.get("THREADS", 2)), help="THREADS of the CPU")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(asked.threads)
    took = measure(asked.tokens)
    floor = took["forward"] + took["products"]
    print(
        f"{asked.tokens} tokens, {asked.threads} threads, 12 → 24 blocks of d 384: ours {took['ours']:.0f} s, forward "
        f"passes {took['forward']:.0f} s and products {took['products']:.0f} s; ours / floor {took['ours'] / floor:.2f}"
        f" (beside the blocks of text, both have it: {took['beside']:.1f} s)"
    )


if __name__ == "__main__":
    main()
