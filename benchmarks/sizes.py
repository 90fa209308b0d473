"""The table of docs/speed.md on what a 7B and a 70B need, computed, not measured:
`.venv/bin/python -m benchmarks.sizes`

Memory: `memory.weights_of` of the published configs' shapes. Time: the products that cannot be avoided (`floor`), for
ten prompts of 200 tokens, at a rate that one H100 has for them in bfloat16, `RATE`; the page's other table has how much
longer the probes take.
"""

import tempfile

from transformers import LlamaConfig, Qwen2Config

from benchmarks import floor
from benchmarks.shapes import SHAPES
from depth_lib.models.memory import weights_of
from tests.oracles import effect_positions

RATE = 400e12  # FLOPs a second: half of what its makers say
LENGTHS = [200] * 10
CONFIGS = {
    "7B (28 blocks, as Qwen2.5-7B)": Qwen2Config(**SHAPES["7B"], tie_word_embeddings=False),
    "70B (80 blocks, as Llama-3.1-70B)": LlamaConfig(**SHAPES["70B"], tie_word_embeddings=False),
}


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
        with tempfile.TemporaryDirectory() as folder:
            config.save_pretrained(folder)
            weights = weights_of(folder)
        memory = [f"{weights.bytes('bfloat16', kind) / 1e9:.0f}" for kind in (None, "8bit", "4bit")]
        seconds = [sum(part.flops() for part in parts) / RATE for parts in work(config).values()]
        seconds = [f"{float(f'{one:.2g}'):g} s" for one in seconds]
        print(f"| {name} | {' / '.join(memory)} GB | {' | '.join(seconds)} |")
