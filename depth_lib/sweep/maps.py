"""The command maps: linear maps from one model's layers to another's, in OUT/linear_maps.

depth-lib maps toy-4l toy-8l --texts embedded
"""

import time
from pathlib import Path

from ..figures.compare import linear_maps_figure
from ..figures.grid import save
from ..model_maps.maps import linear_maps
from ..model_maps.stretch import MEASURES, stretch
from ..model_maps.texts import read_texts
from ..results.artifacts import load_artifact, save_artifact
from ..results.provenance import fingerprint, prompts_hash, refuse_to_replace, why_stale
from .plan import Plan


def maps(plan: Plan, source_model: str, target_model: str) -> int:
    """Read the maps of two models, or compute them if they are missing or stale; print and draw them."""
    models, names = (source_model, target_model), [Path(model).name for model in (source_model, target_model)]
    loading = {name.lower(): plan.model_extra.get(name) for name in ("DTYPE", "QUANTIZATION")}  # of both models
    documents = read_texts(plan.TEXTS, plan.N_CHARACTERS)
    made_from = {"source_model": source_model, "target_model": target_model, "texts": plan.TEXTS, "what": plan.WHAT}
    made_from |= loading | {"n_texts": len(documents), "texts_hash": prompts_hash(documents)}
    if here := [fingerprint(model) for model in models if Path(model).exists()]:
        made_from["weights"] = here  # weights on the Hub are compared by name
    what = "" if plan.WHAT == "residual" else f"{plan.WHAT}_"
    path = Path(plan.folder) / "linear_maps" / f"linear_map_{what}{names[0]}_to_{names[1]}.pt"
    refuse_to_replace(path, made_from, f"run: mv {path} {path}.old")
    if why_stale(path, made_from):
        start = time.time()
        given = {name: value for name, value in loading.items() if value}
        result = linear_maps(*models, documents, plan.WHAT, **given)
        save_artifact(path, result, made_from | {"model": " → ".join(names), "seconds": time.time() - start})
    else:
        print(f"{path}: nothing to compute")
    result = load_artifact(path)
    for name, (value, low, high) in stretch(result).items():
        print(f"{name:17}{value:6.2f}  [{low:.2f}, {high:.2f}]  {MEASURES[name]}")
    print(path, *save(linear_maps_figure(result, *names), path.with_suffix("")), sep="\n")
    return 0
