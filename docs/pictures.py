"""Draw the figures of README and docs from the results of `make real` and `make demo`: make pictures."""

from pathlib import Path

from PIL import Image

from depth_lib.effective_depth.tables import depths
from depth_lib.figures import study_figure, summary_figure
from depth_lib.results.study import Study

DOCS = Path(__file__).parent
OUTPUTS = DOCS.parent / "outputs"


def save(figure, path):
    """A drawing of few colours, and so of few bytes."""
    figure.savefig(path, dpi=140)
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)


if __name__ == "__main__":
    smollm2 = Study(OUTPUTS / "real", ["SmolLM2-135M-Instruct"], ["gsm8k"])
    if smollm2.of("block_removal"):
        save(study_figure("block_removal", smollm2, ["gsm8k"]), DOCS / "removal.png")
    toys = ["toy-4l", "toy-8l", "toy-16l"]
    save(
        study_figure("residual_erasure", Study(OUTPUTS / "demo", toys, ["gsm8k"]), ["gsm8k"]),
        DOCS / "residual_erasure.png",
    )
    save(summary_figure(depths(Study(OUTPUTS / "demo", toys))), DOCS / "summary.png")
