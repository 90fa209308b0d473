"""SmolLM2's curves as they were: what they are made of, and the command that writes them anew.

    .venv/bin/python -m tests.real.golden

A changed file belongs into a commit that says why the numbers moved.
"""

from pathlib import Path

import pandas as pd

import depth_lib as dl

KEPT = Path(__file__).with_name("golden.csv")
PROMPTS = [prompt[:160] for prompt in dl.load_prompts("gsm8k", 2, source="sample")]
CONTRIBUTIONS = ("att_cos", "mlp_cos", "layer_cos", "io_cos", "rc_att", "rc_mlp", "norm_att", "norm_mlp", "progress")
LENS = ("res_kl_divs", "res_overlaps", "res_mrr", "res_entropy", "res_jsd")


def curves(llm) -> dict:
    """key -> values over layers, of contribution and lens; what skips, erasures and gradients find is kept as their
    oracles' (interventions.py, reference.py)."""
    found = dl.relative_contribution(llm, PROMPTS)
    lens = dl.logit_lens(llm, PROMPTS)
    return {key: found[key] for key in CONTRIBUTIONS} | {key: lens[key] for key in LENS}


def as_frame(found) -> pd.DataFrame:
    """Columns key, place (the layer, or what the key says) and value."""
    rows = [(key, place, value) for key, values in found.items() for place, value in enumerate(values.tolist())]
    return pd.DataFrame(rows, columns=["key", "place", "value"])


if __name__ == "__main__":
    as_frame(curves(dl.load_model("SmolLM2-135M-Instruct"))).to_csv(KEPT, index=False, float_format="%.7g")
    print(KEPT)
