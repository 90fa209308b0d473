"""The table of docs/speed.md on what a 7B and a 70B need, computed, not measured:
`.venv/bin/python -m benchmarks.sizes`

Memory: of the published configs' shapes, with 2% for buffers; quantised are the blocks' linear layers. Time: the
products that cannot be avoided (`floor`), for ten prompts of 200 tokens, at a rate that one H100 has for them in
bfloat16, `RATE`; the page's other table has how much longer the probes take.
"""

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from benchmarks import floor
from benchmarks.shapes import SHAPES
from tests.oracles import effect_positions

RATE = 400e12  # FLOPs a second: half of what its makers say
LENGTHS = [200] * 10
CONFIGS = {
    "7B (28 blocks, as Qwen2.5-7B)": Qwen2Config(**SHAPES["7B"], tie_word_embeddings=False),
    "70B (80 blocks, as Llama-3.1-70B)": LlamaConfig(**SHAPES["70B"], tie_word_embeddings=False),
}


BYTES = (2, 1, 0.5625)  # of a linear weight in bfloat16, 8bit and 4bit, where 64 weights have a float32 scale


def gigabytes(config):
    """What the weights of a model take for each of BYTES."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    linear = sum(part.weight.numel() for part in model.model.modules() if isinstance(part, nn.Linear))
    return [1.02 * (linear * each + (model.num_parameters() - linear) * 2) / 1e9 for each in BYTES]


def work(config):
    """The papers' five probes: name -> `floor.Work`; erasure and gradients of 24 tokens, 60 nodes a block."""
    effects = [floor.layer_effects(config, LENGTHS, how) for how in (effect_positions(LENGTHS), [None] * len(LENGTHS))]
    return {
        "contribution, lens": [floor.relative_contribution(config, LENGTHS), floor.logit_lens(config, LENGTHS)],
        "effects": effects,
        "erasure": [floor.residual_erasure(config, [22, 23], LENGTHS)],
        "gradients": [floor.integrated_gradients(config, 24, [22, 23], [60] * config.num_hidden_layers)],
    }


if __name__ == "__main__":
    for name, config in CONFIGS.items():
        memory = [f"{size:.0f}" for size in gigabytes(config)]
        seconds = [sum(part.flops() for part in parts) / RATE for parts in work(config).values()]
        seconds = [f"{float(f'{one:.2g}'):g} s" for one in seconds]
        print(f"| {name} | {' / '.join(memory)} GB | {' | '.join(seconds)} |")
