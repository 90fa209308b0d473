"""Depths with random weights: `python -m tests.effective_depth.null` prints its part of docs/coverage.md, in about five
minutes of one core.

40 models without training: twenty kinds, once as transformers initialises them and once with every weight drawn anew,
of several widths, depths, vocabularies and seeds, on five prompts of GSM8K.
"""

import random
import sys
import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
import transformers

import depth_lib as dl
from depth_lib.effective_depth.rules import LEAST_COSINE, LEAST_GAIN, LEAST_KL, RULES
from depth_lib.models.load import wrapped
from tests.families import FAMILIES, randomise
from tests.tiny_tokenizers import VOCABULARY_SIZE, char_tokenizer

KINDS = (
    "llama mistral qwen2 qwen2_tied qwen3 mixtral qwen3_moe olmo2 gemma2 gemma3_text "
    "glm4 gpt2 gpt_neox phi phi3 cohere granite falcon bloom opt"
).split()
WIDTHS, DEPTHS, VOCABULARIES = (64, 128, 256), (4, 6, 8, 10, 12, 16), (VOCABULARY_SIZE, 16_384)
CHARACTERS = 250  # of each prompt


@dataclass(frozen=True)
class Untrained:
    """A model without training. drawn: whether every weight is drawn anew, on a scale that gives logits a spread."""

    kind: str
    width: int
    depth: int
    vocabulary: int
    seed: int
    drawn: bool

    def build(self) -> transformers.PreTrainedModel:
        """The model, the same one every time."""
        config = FAMILIES[self.kind]().config
        for name in ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"):
            if getattr(config, name, None):
                setattr(config, name, 4 * self.width)
        if hasattr(config, "word_embed_proj_dim"):
            config.word_embed_proj_dim = self.width
        if kinds := getattr(config, "layer_types", None):
            config.layer_types = [kinds[l % len(kinds)] for l in range(self.depth)]
        config.hidden_size, config.num_hidden_layers, config.vocab_size = self.width, self.depth, self.vocabulary
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = transformers.AutoModelForCausalLM.from_config(config)
            if self.drawn:
                randomise(model)
        return model.eval().requires_grad_(False)


def untrained(seed: int = 0) -> list[Untrained]:
    """40 models: each kind as it is initialised, and drawn."""
    draw = random.Random(seed)
    sizes = WIDTHS, DEPTHS, VOCABULARIES, range(10**6)
    return [Untrained(kind, *map(draw.choice, sizes), drawn) for drawn in (False, True) for kind in KINDS]


def measured(one: Untrained) -> dict[str, object]:
    """What the criteria read of a model, and the depths that it has with and without them."""
    llm = wrapped(one.build(), char_tokenizer(), task="text-generation")
    prompts = [prompt[:CHARACTERS] for prompt in dl.load_prompts("gsm8k", 5, source="sample")]
    contribution, lens = dl.relative_contribution(llm, prompts), dl.logit_lens(llm, prompts)
    cosine = RULES["cosine"].curve(contribution)
    row = {
        "weights": "drawn" if one.drawn else "initialised",
        "kl": float(lens["res_kl_divs"].max()),
        "gain": float((lens["shuffled_loss"] - lens["loss"]).mean()),
        "cosine": float(np.sqrt(np.square(cosine).mean()) / contribution["chance_cos"].item()),
    }
    found = pd.concat(map(dl.effective_depths, (contribution, lens)))
    for name in RULES:
        rule, result = RULES[name], contribution if name == "cosine" else lens
        row[f"{name} unmarked"] = bool(found.ed.notna()[name])
        row[f"{name} without criteria"] = rule.depth(result) is not None
    return row


def table(rows: pd.DataFrame) -> str:
    """The part of docs/coverage.md."""
    lines = [
        "| weights | largest KL, nats | gain over shuffled tokens, nats per token | mean cosine, divided by that of a "
        "random direction | models with a depth by cosine, kl, overlap | the same, without the criteria below |",
        "|---|---|---|---|---|---|",
    ]
    for weights, some in rows.groupby("weights"):
        ranges = [
            f"{some[name].min():.2f} – {some[name].max():.2f} (median {some[name].median():.2f})"
            for name in ("kl", "gain", "cosine")
        ]
        counts = [
            ", ".join(f"{some[f'{name} {which}'].sum()} of {len(some)}" for name in RULES)
            for which in ("unmarked", "without criteria")
        ]
        lines.append(f"| {weights} | {' | '.join((*ranges, *counts))} |")
    return "\n".join(lines)


def section(rows: pd.DataFrame) -> str:
    """The part of docs/coverage.md with its explanation."""
    return f"""## Depths with random weights

The table is printed by `python -m tests.effective_depth.null`. It shows {len(rows)} untrained models, two for each of
{len(KINDS)} architectures, on five prompts of GSM8K. The first of the two has the weights that transformers
initialises. In the second, every weight is redrawn on a larger scale, which spreads the logits. The models
are {min(WIDTHS)} to {max(WIDTHS)} wide and have {min(DEPTHS)} to {max(DEPTHS)} blocks.

{table(rows)}

A result is therefore reported as having no reliable depth if

- **kl**, **overlap**: the largest KL divergence is below {LEAST_KL:g} nat, or the model's loss on its prompts is less
  than {LEAST_GAIN:g} nats per token below its loss on the same tokens in shuffled order. Files without these losses,
  such as the papers' own, skip this test.
- **cosine**: the root mean square of the mean cosine over layers is below {LEAST_COSINE:g} / √d. A random direction in
  d dimensions has a cosine of about 1 / √d. Files without d skip this test."""


def main() -> None:
    rows = []
    for one in untrained():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows.append(measured(one))
        print(one, rows[-1], file=sys.stderr, flush=True)
    print(section(pd.DataFrame(rows)))


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    main()
