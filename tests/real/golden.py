"""SmolLM2's curves as they were: what they are made of, and the command that writes them anew.

    .venv/bin/python -m tests.real.golden

A changed file belongs into a commit that says why the numbers moved.
"""

from pathlib import Path

import pandas as pd

import depth_lib as dl
from depth_lib.architectures import describe
from depth_lib.probes.integrated_gradients import integrated_gradients
from depth_lib.session import run
from depth_lib.tokens import answer_span

KEPT = Path(__file__).with_name("golden.csv")
PROMPTS = [prompt[:160] for prompt in dl.load_prompts("gsm8k", 2, source="sample")]
PAIR = ("5 + 7 = ", "12")
BLOCKS = [25, 28]  # of integrated gradients: all take minutes
CONTRIBUTIONS = ("att_cos", "mlp_cos", "layer_cos", "io_cos", "rc_att", "rc_mlp", "norm_att", "norm_mlp", "progress")
LENS = ("res_kl_divs", "res_overlaps", "res_mrr", "res_entropy", "res_jsd")
EFFECTS = ("max_{}_out", "{}_kl", "{}_loss")


def forward_curves(llm) -> dict:
    """key -> values over layers, of contribution and lens, which take one pass a prompt."""
    found = dl.relative_contribution(llm, PROMPTS)
    lens = dl.logit_lens(llm, PROMPTS)
    return {key: found[key] for key in CONTRIBUTIONS} | {key: lens[key] for key in LENS}


def curves(llm) -> dict:
    """All of them: those, and what interventions do, on a short prompt and a short sum."""
    found = forward_curves(llm)
    for mode in ("future", "all"):
        effects = dl.layer_effects(llm, PROMPTS[:1], mode=mode)
        found |= {key.format(mode): effects[key.format(mode)].flatten() for key in EFFECTS}
        found[f"max_{mode}_layer, mean of later"] = effects[f"max_{mode}_layer"].triu(1).mean(1)
    found["erasure_effect, largest token"] = dl.residual_erasure(llm, *PAIR, PROMPTS)["erasure_effect"].amax(1)
    ids, answer, _ = answer_span(llm, *PAIR)
    how = {"at": "block", "steps": None, "tolerance": 0.01}
    igrads = run(integrated_gradients, llm, describe(llm), ids, answer, BLOCKS, how, None)["igrads"]
    return found | {f"igrads of block {l}, over tokens": row for l, row in zip(BLOCKS, igrads, strict=True)}


def as_frame(found) -> pd.DataFrame:
    """Columns key, place (the layer, or what the key says) and value."""
    rows = [(key, place, value) for key, values in found.items() for place, value in enumerate(values.tolist())]
    return pd.DataFrame(rows, columns=["key", "place", "value"])


if __name__ == "__main__":
    as_frame(curves(dl.load_model("SmolLM2-135M-Instruct"))).to_csv(KEPT, index=False, float_format="%.7g")
    print(KEPT)
