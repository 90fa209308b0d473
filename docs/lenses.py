"""Is "late" the logit lens's fault? python -m docs.lenses MODEL PICTURE, such as model.gguf qwen/ridge.png.

Fits a ridge on Python's own help, in build/lenses (goes on where it was interrupted), prints the depths by the logit
lens and by the ridge on ten prompts of each dataset's sample, and draws their curves.
"""

import importlib
import pkgutil
import pydoc
import sys
from contextlib import suppress
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

import depth_lib as dl
from docs.pictures import DOCS, save

DATASETS = {"gsm8k": "GSM8K", "hellaswag": "HellaSwag", "aime24": "AIME24"}


def help_texts(n=130):
    """The beginnings of the help pages of n modules of the standard library."""
    texts, skipped = [], {"antigravity", "idlelib", "test", "this"}
    names = {module.name for module in pkgutil.iter_modules()} & sys.stdlib_module_names
    for name in sorted(names - skipped):
        if not name.startswith("_"):
            with suppress(Exception):  # modules of other systems
                texts.append(pydoc.plain(pydoc.render_doc(importlib.import_module(name)))[:2000])
    return texts[:n]


def main(model, picture):
    llm = dl.load_model(model, dtype="float32")
    ridge = dl.fit_lens(llm, help_texts(), kind="ridge", path=Path("build", "lenses", f"{Path(model).stem}.pt"))
    found, results = {}, {}
    for dataset, name in DATASETS.items():
        prompts = dl.load_prompts(dataset, 10, source="sample")
        results[name] = {"logit lens": dl.logit_lens(llm, prompts), "ridge": dl.logit_lens(llm, prompts, lens=ridge)}
        found[name] = dl.effective_depths(results[name])
        for lens, result in results[name].items():
            print(name, lens, result["res_kl_divs"].numpy().round(2), result["res_overlaps"].numpy().round(2), sep="\n")
    print(pd.concat(found)[["ed", "low", "high", "note"]].to_string())
    figure, axes = plt.subplots(2, len(results), figsize=(10, 5.4), layout="constrained", sharey="row")
    for column, (name, of_dataset) in zip(axes.T, results.items(), strict=True):
        for ax, kind in zip(column, ("lens_kl", "lens_overlap"), strict=True):
            dl.plot(kind, of_dataset, ax=ax, title=name)
            ax.get_legend().remove()
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    save(figure, DOCS / picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
