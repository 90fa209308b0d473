"""Maps from one model's layers to another's: result, numbers and figure in OUT/linear_maps.

depth-lib maps toy-4l toy-8l --texts embedded
"""

import argparse
import sys
import time
from pathlib import Path

from ..figures.compare import linear_maps_figure
from ..figures.grid import save
from ..model_maps.maps import linear_maps
from ..model_maps.stretch import MEASURES, stretch
from ..model_maps.texts import read_texts
from ..results.artifacts import load_artifact, save_artifact
from ..results.provenance import fingerprint, prompts_hash, refuse_to_replace, why_stale
from ..results.schemas import ArtifactError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="depth-lib maps", description=__doc__.splitlines()[0])
    parser.add_argument("source_model")
    parser.add_argument("target_model")
    parser.add_argument("--texts", default="embedded", help="a text file, embedded, or a Hub dataset owner/name:config")
    parser.add_argument("--what", default="residual", choices=["residual", "contribution"])
    parser.add_argument("--n-characters", type=int, default=1_000_000)
    parser.add_argument("--out", default="outputs")
    parser.add_argument("--dtype", help="of both models: float32, bfloat16, float16")
    parser.add_argument("--quantization", help="8bit or 4bit weights (bitsandbytes)")
    try:
        _run(vars(parser.parse_args(arguments)))
    except (ValueError, ArtifactError) as error:  # one line that names the next step
        print(error, file=sys.stderr)
        return 1
    return 0


def _run(made_from: dict) -> None:
    """Read the artifact of two models if it is there and was made from this, else compute it."""
    models = made_from["source_model"], made_from["target_model"]
    names = [Path(model).name for model in models]
    what = "" if made_from["what"] == "residual" else f"{made_from['what']}_"
    path = Path(made_from.pop("out")) / "linear_maps" / f"linear_map_{what}{names[0]}_to_{names[1]}.pt"
    documents = read_texts(made_from["texts"], made_from.pop("n_characters"))
    made_from |= {"n_texts": len(documents), "texts_hash": prompts_hash(documents)}
    if here := [fingerprint(model) for model in models if Path(model).exists()]:
        made_from["weights"] = here  # the Hub's have a name of their own
    refuse_to_replace(path, made_from, f"run: mv {path} {path}.old")
    if why_stale(path, made_from):
        start = time.time()
        loading = {key: made_from[key] for key in ("dtype", "quantization") if made_from[key]}
        result = linear_maps(*models, documents, made_from["what"], **loading)
        save_artifact(path, result, made_from | {"model": " → ".join(names), "seconds": time.time() - start})
    else:
        print(f"{path}: nothing to compute")
    result = load_artifact(path)
    for name, (value, low, high) in stretch(result).items():
        print(f"{name:17}{value:6.2f}  [{low:.2f}, {high:.2f}]  {MEASURES[name]}")
    print(path, *save(linear_maps_figure(result, *names), path.with_suffix("")), sep="\n")
