"""What skips and erasures do to SmolLM2-135M-Instruct, by the oracle: `python -m tests.real.interventions`.

Every block is skipped and every layer erased, in float64, with one full forward pass for each token and position: two
minutes on one core. What comes out is kept beside this file.
"""

import json
from pathlib import Path

import depth_lib as dl
from depth_lib.data.tokens import tokenize
from tests import oracles

KEPT = Path(__file__).with_name("interventions.json")
SHORT = "The quick brown fox jumps over 13 lazy dogs, and then over 28 more."
LONG = dl.load_prompts("gsm8k", 1, source="sample")[0][:240]
TEXTS = {"short": SHORT, "long": LONG}
MODES = ("future", "all")
PAIR = ("5 + 7 = ", "12")


def erasure(llm, model, layers=None):
    """erasure_effect [L+1, T] of PAIR in `model` with both texts as baseline; of `layers`, or of all."""
    ids, span = oracles.answer_span(llm.tokenizer, *PAIR)
    baseline = tokenize(llm, list(TEXTS.values()))
    return oracles.residual_erasure(model, ids, span, baseline, layers)["erasure_effect"]


def rounded(values):
    return [rounded(row) for row in values] if isinstance(values, list) else float(f"{values:.8g}")


def main():
    llm = dl.load_model("SmolLM2-135M-Instruct")
    model, kept = oracles.in_float64(llm._module), {}
    for name, text in TEXTS.items():
        for mode in MODES:
            found = oracles.layer_effects(model, tokenize(llm, [text]), mode)
            kept |= {f"{key}, {name}": value.tolist() for key, value in found.items()}
    kept["erasure_effect"] = erasure(llm, model).tolist()
    lines = [f'"{key}": {json.dumps(rounded(value))}' for key, value in kept.items()]
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
