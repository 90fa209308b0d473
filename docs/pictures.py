"""Draw the pictures of README and docs anew from what `make real` and `make demo` left: make pictures."""

from pathlib import Path

from depth_lib.figures import grid
from depth_lib.figures.compare import overview_figure
from depth_lib.results.study import Study

DOCS = Path(__file__).parent
OUTPUTS = DOCS.parent / "outputs"


if __name__ == "__main__":
    smollm2 = Study(OUTPUTS / "real", ["SmolLM2-135M-Instruct"], ["gsm8k"])
    overview_figure(smollm2).savefig(DOCS / "smollm2_gsm8k.png", dpi=160)
    toys = ["toy-4l", "toy-8l", "toy-16l"]
    grid("residual_erasure", Study(OUTPUTS / "demo", toys, ["gsm8k"])).savefig(DOCS / "residual_erasure.png", dpi=160)
