"""All of docs/pair.md from two GGUF files of one family: python -m docs.pair SMALL.gguf LARGE.gguf.

Computes what is missing in outputs/pair, prints the tables and numbers of the page, and draws its figures into
docs/pair. If interrupted, rerun the command to resume.
"""

import random
import resource
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

import depth_lib as dl
from depth_lib.results.provenance import prompts_hash
from docs.lenses import help_texts
from docs.pictures import DOCS, OUTPUTS, save

OUT = OUTPUTS / "pair"
DATASETS = ["gsm8k", "hellaswag", "aime24"]
CURVES = ["relative_contribution", "logit_lens"]
REMOVED_FROM, N_REMOVED_FROM, SIZES = "hellaswag", 5, [1, 2]


def prompts_of(dataset: str, n: int | None = None) -> list[str]:
    """A data set's prompts that ship with the package, as many as the papers take."""
    return dl.load_prompts(dataset, n, source="sample")


def texts(n_help: int = 40, length: int = 500) -> list[str]:
    """The texts of the maps, shuffled: all prompts, and the beginnings of Python's own help pages."""
    mixed = [prompt for dataset in DATASETS for prompt in prompts_of(dataset, 12)]
    mixed += [text[:length] for text in help_texts(n_help)]
    random.Random(0).shuffle(mixed)
    return mixed


@cache
def loaded(file: str):
    """A model in bfloat16."""
    return dl.load_model(file, dtype="bfloat16")


def stored(path: Path, what: str, compute: Callable[[], Mapping]) -> dict:
    """The tensors in a file; computed and saved if there is none, with a line of its cost in costs.txt."""
    if not path.is_file():
        wall, cpu = time.perf_counter(), time.process_time()
        found = compute()
        wall, cpu = (time.perf_counter() - wall) / 60, (time.process_time() - cpu) / 60
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(dict(found), path.with_suffix(".unfinished"))
        path.with_suffix(".unfinished").rename(path)
        with (OUT / "costs.txt").open("a", encoding="utf-8") as costs:
            costs.write(f"{what}: {wall:.1f} minutes, {cpu:.1f} of CPU, peak {peak:.1f} GiB\n")
    return torch.load(path)


def measured(file: str, dataset: str, probe: str, n: int | None = None, **settings) -> dict:
    """A probe's result of one model on one data set."""
    name, prompts = Path(file).stem, prompts_of(dataset, n)
    path = OUT / dataset / name / f"{probe}.pt"
    found = stored(
        path, f"{probe} of {name} on {dataset}", lambda: getattr(dl, probe)(loaded(file), prompts, **settings)
    )
    return found | {"meta": {"model": name, "prompts_hash": prompts_hash(prompts)}}


def at_the_end(n_source: int, n_target: int) -> float:
    """What `dl.stretch` finds if layer l of the target matches layer l of the source, and the last one after those."""
    of_target = np.linspace(0, 1, n_target + 1)
    best = np.minimum(np.arange(n_target + 1), n_source) / n_source
    return float(best @ of_target / (of_target @ of_target))


def drawn_maps(maps: Mapping, names: list[str]) -> Figure:
    """The errors of all maps, the best source layers, and the two lines that they might follow."""
    relative, best = maps["relative"].numpy(), maps["best"].numpy()
    n_source, n_target = (n - 1 for n in relative.shape)
    figure, ax = plt.subplots(figsize=(7, 5), layout="constrained")
    image = ax.imshow(relative, origin="lower", cmap="viridis", vmin=relative.min(), vmax=np.quantile(relative, 0.9))
    ax.plot(best, "o-", color="white", markersize=4, linewidth=1, label="best source layer")
    ax.plot([0, n_target], [0, n_source], "--", color="tab:red", label="stretched")
    ax.plot([0, n_source, n_target], [0, n_source, n_source], ":", color="black", label="more layers at the end")
    ax.set(xlabel=f"Layer of {names[1]}", ylabel=f"Layer of {names[0]}", title="Relative error of linear maps")
    ax.legend(loc="upper left", fontsize=8, facecolor="silver")  # on which white is seen
    figure.colorbar(image, ax=ax, extend="max", label="Error, relative to the norm")
    return figure


def drawn_ratios(depths: pd.DataFrame) -> Figure:
    """The ratio of each model, data set and rule, with its interval."""
    rules = depths.rule.unique()
    figure, axes = plt.subplots(1, len(rules), figsize=(10, 2.6), sharex=True, sharey=True, layout="constrained")
    for ax, rule in zip(axes, rules, strict=True):
        for shift, (name, rows) in enumerate(depths[depths.rule == rule].groupby("model", sort=False)):
            y = rows.dataset.map(DATASETS.index).to_numpy() + 0.24 * shift - 0.12
            low, high = rows.ratio_low.fillna(0).astype(float), rows.ratio_high.fillna(1).astype(float)
            ratio = rows.ratio.astype(float)
            ax.errorbar(ratio, y, xerr=[ratio - low, high - ratio], fmt="o", capsize=3, label=name)
        ax.set(title=rule, xlabel="Effective depth / number of layers", xlim=(0, 1.02))
        ax.set_yticks(range(len(DATASETS)), DATASETS)
    axes[0].invert_yaxis()
    axes[0].legend(fontsize=8, loc="lower left")
    return figure


def main(small: str, large: str) -> None:
    files = {Path(file).stem: file for file in (small, large)}
    curves = {
        (dataset, probe): {name: measured(file, dataset, probe) for name, file in files.items()}
        for dataset in DATASETS
        for probe in CURVES
    }
    removals = {
        name: measured(file, REMOVED_FROM, "block_removal", N_REMOVED_FROM, sizes=SIZES) for name, file in files.items()
    }
    depths = []
    for (dataset, _), results in curves.items():
        found = dl.effective_depths(results).reset_index().rename(columns={"metric": "rule", "name": "model"})
        depths.append(found.assign(dataset=dataset))
    depths = pd.concat(depths).sort_values(["rule", "dataset"], kind="stable")
    columns = ["rule", "dataset", "model", "layers", "ed", "low", "high", "ratio", "ratio_low", "ratio_high", "note"]
    print(depths[columns].to_string(index=False, float_format="{:.3f}".format), end="\n\n")
    (DOCS / "pair").mkdir(exist_ok=True)
    save(drawn_ratios(depths), DOCS / "pair" / "ratios.png")
    for (dataset, probe), results in curves.items():
        print(f"{dataset}, {probe}", dl.compare(results), sep="\n", end="\n\n")
    for name, result in removals.items():
        print(name, dl.removable(result), sep=": ")
        for size, losses in zip(SIZES, result["removal_loss"], strict=True):
            print(f"  {size} removed, by first block:", [round(x, 2) for x in losses.tolist()])
    print()
    maps = stored(OUT / "maps.pt", "linear maps", lambda: dl.linear_maps(loaded(small), loaded(large), texts()))
    relative = maps["relative"]
    n_source, n_target = (n - 1 for n in relative.shape)
    print("best source layer of each target layer:", maps["best"].int().tolist())
    print("its error:", [round(x, 3) for x in relative.min(0).values.tolist()])
    print("error of the mean:", [round(x, 3) for x in maps["relative_mean"].tolist()])
    print("held-out texts:", len(maps["n_tokens"]), "tokens:", int(maps["n_tokens"].sum()))
    print("slope: {:.3f} [{:.3f}, {:.3f}]".format(*dl.stretch(maps)), end="; ")
    print(f"stretched: 1, more layers at the end: {at_the_end(n_source, n_target):.3f}", end="\n\n")
    print((OUT / "costs.txt").read_text(encoding="utf-8"))
    save(drawn_maps(maps, list(files)), DOCS / "pair" / "maps.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
