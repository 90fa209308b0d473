"""Draw the pictures of README and docs anew from what `make real` and `make demo` left: make pictures."""

from pathlib import Path

import matplotlib.pyplot as plt

from depth_lib.figures import KINDS, grid
from depth_lib.figures.marks import STYLE
from depth_lib.results.study import Study

DOCS = Path(__file__).parent
OUTPUTS = DOCS.parent / "outputs"


def three_curves(study: Study) -> plt.Figure:
    """What the three rules of the effective depth read, for SmolLM2 on GSM8K."""
    curves = {
        "cosine": "What layers write: cosine",
        "lens_kl": "Logit lens: KL divergence",
        "lens_overlap": "Logit lens: top-5 overlap",
    }
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 3, figsize=(7.2, 2.3), layout="constrained")
        for ax, (name, title) in zip(axes, curves.items(), strict=True):
            kind = KINDS[name]
            result = study["gsm8k", "SmolLM2-135M-Instruct", kind.probe]
            (panel,) = kind.panels(result).values()
            kind.draw(ax, panel, result)
            ax.set(xlabel=kind.xlabel, ylabel=kind.ylabel, title=title)
        handles = [handle for ax in axes[:2] for handle in ax.get_legend_handles_labels()[0]]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


if __name__ == "__main__":
    three_curves(Study(OUTPUTS / "real")).savefig(DOCS / "smollm2_gsm8k.png", dpi=160)
    toys = ["toy-4l", "toy-8l", "toy-16l"]
    grid("residual_erasure", Study(OUTPUTS / "demo", toys, ["gsm8k"])).savefig(DOCS / "residual_erasure.png", dpi=160)
