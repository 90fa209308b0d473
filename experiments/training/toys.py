"""Trains the toy checkpoints, from nothing, on one CPU core each: `python -m experiments.training.toys --model toy-8l`.

Every step reads a batch of packed sums and, every third, a long row of templated text. Seeded: the same versions and
machine give the same weights. toy-loop is trained in four passes over its two blocks, and is toy-8l otherwise. Three
side by side took 16 to 20 minutes on a busy four-core machine; tests/embedded tests what they can do.
"""

import argparse
from functools import partial
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from depth_lib.embedded import toy_path
from depth_lib.models.unroll import unroll

from .corpus import draw_sum, draw_text
from .shared import GENERATION, SHAPE
from .trainer import END, Recipe, train

SEED, STEPS = 0, 1800
BLOCKS = {"toy-4l": 4, "toy-8l": 8, "toy-16l": 16, "toy-loop": 2}
PASSES = {"toy-loop": 4}
PEAK_RATE = {"toy-4l": 2e-3, "toy-8l": 2e-3, "toy-16l": 1.5e-3, "toy-loop": 2e-3}


def byte_tokenizer() -> Qwen2Tokenizer:
    """One token a UTF-8 byte (one a character in ASCII), and one token for the end of a text; nothing at the beginning.

    Qwen2's byte-level BPE without a single merge.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    stand_ins = iter(range(256, 512))  # GPT-2's characters for the bytes that do not print
    symbols = {chr(byte if byte in printable else next(stand_ins)): byte for byte in range(256)}
    special = dict(unk_token=END, eos_token=END, pad_token=END)
    return Qwen2Tokenizer(vocab={**symbols, END: 256}, merges=[], model_max_length=2048, **special)


def new_model(blocks: int) -> Qwen2ForCausalLM:
    """A randomly initialised Qwen2 of width 128 with `blocks` blocks."""
    model = Qwen2ForCausalLM(Qwen2Config(**SHAPE, num_hidden_layers=blocks))
    model.generation_config = GENERATION
    return model


def train_toy(name: str) -> Qwen2ForCausalLM:
    """The trained toy `name` in float32."""
    torch.manual_seed(SEED)
    recipe = Recipe(name, SEED, STEPS, PEAK_RATE[name], question_weight=0.1, text_every=3)
    model, draw = new_model(BLOCKS[name]), partial(draw_sum, held_out=False)
    looped = unroll(model, PASSES[name]) if name in PASSES else model  # on the same weights
    train(recipe, looped, byte_tokenizer(), draw, draw_text)
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=BLOCKS, default="toy-8l")
    parser.add_argument("--out", type=Path, help="checkpoint folder to write (default: the one in the package)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = options.out or toy_path(options.model)
    train_toy(options.model).half().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)


if __name__ == "__main__":
    main()
