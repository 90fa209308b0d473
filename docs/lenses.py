"""Is "late" the logit lens's fault? python -m docs.lenses MODEL PICTURE, such as model.gguf qwen/lens_depths.png.

Fits a ridge on Python's own help pages. Prints the depths by the logit lens and by the ridge on ten problems of GSM8K,
and draws their curves. If interrupted, rerun the command to resume.
"""

import importlib
import pkgutil
import pydoc
import sys
from contextlib import suppress
from pathlib import Path

import matplotlib.pyplot as plt

import depth_lib as dl
from docs.pictures import DOCS, save


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
    llm, prompts = dl.load_model(model, dtype="float32"), dl.load_prompts("gsm8k", 12, source="sample")
    path = Path("build", "lenses", f"{Path(model).stem}.pt")
    ridge = dl.load_lens(path) if path.is_file() else dl.fit_lens(llm, prompts[10:] + help_texts(), "ridge", path)
    results = {"logit lens": dl.logit_lens(llm, prompts[:10]), "ridge": dl.logit_lens(llm, prompts[:10], lens=ridge)}
    for name, result in results.items():
        print(name, result["res_kl_divs"].numpy().round(2), result["res_overlaps"].numpy().round(2), sep="\n")
    print(dl.effective_depths(results).to_string())
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
    for ax, kind in zip(axes, ("lens_kl", "lens_overlap"), strict=True):
        dl.plot(kind, results, ax=ax, title=f"{Path(model).stem}, GSM8K")
        ax.get_legend().remove()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    save(figure, DOCS / picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
