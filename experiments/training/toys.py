"""Trains the toy checkpoints, from nothing, on one CPU core each: `python -m experiments.training.toys --model toy-8l`.

Every step reads a batch of packed sums and, every third, a long row of templated text. Seeded: the same versions,
machine and `--threads` give the same weights. The three side by side, one thread each, took 16 to 20 minutes on a busy
four-core machine; the printed figures are those of the float16 weights, read back as float32.
"""

import argparse
import math
import random
from collections import Counter
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
)

from depth_lib.data.prompts import load_prompts
from depth_lib.embedded import toy_path

from .corpus import ROWS, draw_sum, draw_text
from .measure import exact_matches
from .trainer import END, Recipe, train

SEED, STEPS = 0, 1800
BLOCKS = {"toy-4l": 4, "toy-8l": 8, "toy-16l": 16}
PEAK_RATE = {"toy-4l": 2e-3, "toy-8l": 2e-3, "toy-16l": 1.5e-3}


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
    end = 256
    config = Qwen2Config(
        vocab_size=257,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=blocks,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=end,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=end)
    return model


def train_toy(name: str, folder: Path) -> Qwen2ForCausalLM:
    """The trained toy `name` in float32; its run is kept in `folder`."""
    torch.manual_seed(SEED)
    recipe = Recipe(name, SEED, STEPS, PEAK_RATE[name], question_weight=0.1, text_every=3)
    model = new_model(BLOCKS[name])
    return train(recipe, model, byte_tokenizer(), lambda rng: draw_sum(rng, held_out=False), folder, draw_text)


def sum_accuracy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, n: int, seed: int = 1) -> float:
    """Share of `n` held-out sums that greedy decoding answers exactly, answer and end, from the question alone."""
    rng = random.Random(seed)
    return sum(exact_matches(model, tokenizer, (draw_sum(rng, held_out=True) for _ in range(n)))) / n


@torch.no_grad()
def text_loss(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> tuple[float, float]:
    """Nats per token over `texts`: the model's mean cross-entropy, and the entropy of their unigram distribution."""
    total, counts = 0.0, Counter()
    for text in texts:
        ids = tokenizer(text, return_tensors="pt").input_ids.to(next(model.parameters()).device)
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
        total += cross_entropy(logits, ids[0, 1:], reduction="sum").item()
        counts.update(ids[0, 1:].tolist())
    n = counts.total()
    return total / n, -sum(count / n * math.log(count / n) for count in counts.values())


def report(folder: Path, n: int = 1000) -> None:
    """Prints what the checkpoint in `folder` can do once its float16 weights are read as float32."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    print(f"{folder.name}: {sum_accuracy(model, tokenizer, n, seed=2):.3f} of {n} held-out sums right", flush=True)
    rng = random.Random(3)
    for dataset in ROWS:
        sources = {
            "fresh": [draw_text(rng, dataset) for _ in range(30)],
            "sample": load_prompts(dataset, 14, source="embedded"),
        }
        for source, texts in sources.items():
            loss, unigram = text_loss(model, tokenizer, texts)
            print(f"  {dataset:9s} {source:6s} {loss:.3f} nats a token, unigram {unigram:.3f} ({loss / unigram:.0%})")


def save(model: PreTrainedModel, folder: Path) -> None:
    """Writes model (as float16) and tokenizer as an ordinary checkpoint folder."""
    model.half().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=BLOCKS, default="toy-8l")
    parser.add_argument("--out", type=Path, help="checkpoint folder to write (default: the one in the package)")
    parser.add_argument("--runs", type=Path, default=Path("build/training"), help="where a killed run goes on from")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    folder = options.out or toy_path(options.model)
    runs = options.runs / options.model
    save(train_toy(options.model, runs), folder)
    report(folder)


if __name__ == "__main__":
    main()
