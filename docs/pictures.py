"""Draw the pictures of README and docs anew from what `make real` and `make demo` left: make pictures."""

from pathlib import Path

import matplotlib.pyplot as plt

from depth_lib.figures import grid, plot
from depth_lib.figures.marks import STYLE
from depth_lib.results.study import Study

DOCS = Path(__file__).parent
OUTPUTS = DOCS.parent / "outputs"


def three_curves() -> plt.Figure:
    """What the three rules of the effective depth read, for SmolLM2 on GSM8K."""
    study, run = Study(OUTPUTS / "real"), ("gsm8k", "SmolLM2-135M-Instruct")
    with plt.rc_context(STYLE):
        figure, (cosine, kl, overlap) = plt.subplots(1, 3, figsize=(7.2, 2.3), layout="constrained")
        plot("cosine", study[*run, "relative_contribution"], cosine, "What layers write: cosine")
        plot("lens_kl", study[*run, "logit_lens"], kl, "Logit lens: KL divergence")
        plot("lens_overlap", study[*run, "logit_lens"], overlap, "Logit lens: top-5 overlap")
        for ax in (cosine, kl, overlap):
            ax.get_legend().remove()
        handles = [handle for ax in (cosine, kl) for handle in ax.get_legend_handles_labels()[0]]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


if __name__ == "__main__":
    three_curves().savefig(DOCS / "smollm2_gsm8k.png", dpi=160)
    toys = ["toy-4l", "toy-8l", "toy-16l"]
    grid("residual_erasure", Study(OUTPUTS / "demo", toys, ["gsm8k"])).savefig(DOCS / "residual_erasure.png", dpi=160)
