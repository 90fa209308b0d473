"""The numbers of Qwen2.5-Coder-1.5B-Instruct in README and docs, from its GGUF file: python -m docs.qwen FILE.gguf.

Runs what is missing in outputs/qwen (bfloat16) and outputs/qwen-float32, prints the tables and draws
docs/qwen/lens.png. published_curves.csv, there, was read off the figures of arXiv 2512.14064 (GSM8K), to half a
pixel: 0.07 nats or 0.003 of overlap.
"""

import subprocess
import sys

import matplotlib.pyplot as plt
import pandas as pd
import torch

import depth_lib as dl
from depth_lib.effective_depth.tables import depths, published_depths
from depth_lib.results.study import Study
from docs.pictures import DOCS, OUTPUTS, save
from tests.real.depths import table

MODEL, DATASETS = "Qwen2.5-Coder-1.5B-Instruct", ["gsm8k", "hellaswag", "aime24"]
SIBLINGS = ["Qwen2.5-1.5B-Instruct", "Qwen2.5-Math-1.5B", "DeepSeek-R1-Distill-Qwen-1.5B"]
CURVES, OF_PAIR = ["relative_contribution", "logit_lens"], ["residual_erasure", "integrated_gradients"]
STUDIES = {"bfloat16": OUTPUTS / "qwen", "float32": OUTPUTS / "qwen-float32"}
RUNS = [  # dtype, probes, data sets
    ("bfloat16", CURVES, DATASETS),
    ("bfloat16", ["layer_effects"], DATASETS),
    ("bfloat16", OF_PAIR, ["gsm8k"]),
    ("bfloat16", ["block_removal"], DATASETS),
    ("float32", CURVES, DATASETS),
    ("float32", OF_PAIR, ["gsm8k"]),
    ("float32", ["layer_effects"], ["hellaswag"]),
]


def run(file):
    """Every result that is not there yet."""
    for dtype, probes, datasets in RUNS:
        options = {"MODELS": [MODEL], "DATASETS": datasets, "PROBES": probes, "MODEL_ID": [file], "DTYPE": [dtype]}
        options |= {"SOURCE": ["sample"], "N_EXAMPLES": ["10"], "OUT": [str(STUDIES[dtype])]}
        flags = [word for name, values in options.items() for word in (f"--{name}", *values)]
        subprocess.run([sys.executable, "-m", "depth_lib", "sweep", *flags], check=True)


def depth_table(studies):
    """A row per data set and rule: ours with its interval in both dtypes, and the siblings' published layers."""
    published = published_depths().pivot(index=["dataset", "rule"], columns="model", values="ed")[SIBLINGS]
    ours = {}
    for dtype, study in studies.items():
        found = depths(study).set_index(["dataset", "rule"])
        ours[dtype] = found.apply(lambda row: f"{row.ed} [{row.low}, {row.high}]", axis=1)
    return pd.DataFrame(ours).join(published)


def differences(studies):
    """The largest difference of bfloat16 from float32, the largest value in float32, and the rounding that the bfloat16
    result states (effects only)."""
    keys = {"relative_contribution": ["layer_cos", "rc_layer"], "logit_lens": ["res_kl_divs", "res_overlaps"]}
    keys |= {"residual_erasure": ["erasure_effect"], "layer_effects": ["max_future_layer"]}
    rows = []
    for dataset, _, probe in studies["float32"]:
        half, single = (studies[dtype][dataset, MODEL, probe] for dtype in ("bfloat16", "float32"))
        for key in keys.get(probe, ()):
            stated = half.get(f"{key}_rounding_floor", torch.full((1,), torch.nan)).max().item()
            changed = (half[key] - single[key]).abs().max().item()
            rows.append((dataset, key, changed, single[key].abs().max().item(), stated))
    return pd.DataFrame(rows, columns=["dataset", "key", "difference", "largest", "stated"])


def norms(study):
    """The residual's norm at each layer on GSM8K: the mean over tokens, and the largest."""
    result = study["gsm8k", MODEL, "relative_contribution"]
    return pd.DataFrame({"mean": result["norm_residual"], "largest": result["max_norm_residual"]})


def gradient_errors(studies):
    """Per block, the stated and the true error of the bfloat16 result: the largest over tokens, relative to the block's
    largest attribution in float32."""
    half, single = (studies[d]["gsm8k", MODEL, "integrated_gradients"] for d in ("bfloat16", "float32"))
    true = (half["igrads"] - single["igrads"]).abs().amax(1) / single["igrads"].abs().amax(1)
    return pd.DataFrame({"stated": half["error"], "true": true})


def beside_the_papers(study):
    """KL and overlap of the lens, with the siblings' published curves over them."""
    curves = pd.read_csv(DOCS / "qwen" / "published_curves.csv")
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for ax, (kind, title) in zip(axes, {"lens_kl": "KL divergence", "lens_overlap": "Overlap"}.items(), strict=True):
        dl.plot(kind, study["gsm8k", MODEL, "logit_lens"], ax=ax, title=f"{title}: {MODEL}, GSM8K")
        ax.get_legend().remove()
        for style, (name, curve) in zip(("-", "--", ":"), curves[curves.figure == kind].groupby("model"), strict=True):
            ax.plot(curve.layer, curve.value, "k" + style, linewidth=1.5, label=f"{name}, published")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return figure


def main(file):
    run(file)
    studies = {dtype: Study(folder, [MODEL], DATASETS) for dtype, folder in STUDIES.items()}
    tables = [of(studies) for of in (depth_table, differences, gradient_errors)]
    for frame in (*tables, norms(studies["float32"])):
        print(frame.to_string(), end="\n\n")
    for dataset in DATASETS:
        print(dataset, dl.removable(studies["bfloat16"][dataset, MODEL, "block_removal"]))
    table(studies["bfloat16"]).to_csv(DOCS / "qwen" / "depths.csv", index=False, float_format="%.2f")
    save(beside_the_papers(Study(STUDIES["bfloat16"], [MODEL], ["gsm8k"])), DOCS / "qwen" / "lens.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
