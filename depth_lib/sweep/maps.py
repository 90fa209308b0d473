"""The command maps: linear maps from one model's layers to another's (model_maps/), in OUT/linear_maps.

    depth-lib maps toy-4l toy-8l --texts embedded

They are read if they are there and of the same weights and texts, otherwise computed; then printed and drawn.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from ..figures.compare import linear_maps_figure
from ..figures.grid import save
from ..files import move_aside
from ..model_maps.maps import linear_maps
from ..model_maps.stretch import MEASURES, stretch
from ..model_maps.texts import read_texts
from ..models.load import load_model
from ..params import command
from ..results.artifacts import load_artifact, save_artifact
from ..results.asked import RunSpec
from ..results.provenance import judge, prompts_hash, superseded
from .plan import Plan


def maps(plan: Plan, source_model: str, target_model: str) -> int:
    """Read the maps of two models, or compute them if they are missing; print and draw them.

    Raises Superseded for maps of other weights or texts, unless REPLACE is set.
    """
    models = (source_model, target_model)
    names = [Path(model).name for model in models]
    loading = {name.lower(): plan.given_for_runs.get(name) for name in ("DTYPE", "QUANTIZATION")}  # of both models
    documents = read_texts(plan.TEXTS, plan.N_CHARACTERS)
    wanted = {"what": plan.WHAT, "texts_hash": prompts_hash(documents), "of_models": _weights(models)} | loading
    what = "" if plan.WHAT == "residual" else f"{plan.WHAT}_"
    path = Path(plan.folder) / "linear_maps" / f"linear_map_{what}{names[0]}_to_{names[1]}.pt"
    state = judge(path, wanted)
    if state.needs_replace and not plan.REPLACE:
        given = plan.as_options | {"TEXTS": plan.TEXTS, "WHAT": plan.WHAT, "N_CHARACTERS": plan.N_CHARACTERS}
        raise superseded(state, f": {command('maps', source_model, target_model, **given, REPLACE=True)}")
    if state.word == "done":
        print(f"{path}: nothing to compute")
    else:
        start = time.time()
        given = {name: value for name, value in loading.items() if value}
        source, target = (load_model(model, **given) for model in models)
        result = linear_maps(source, target, documents, plan.WHAT)
        if state.needs_replace:
            print(f"{path} is kept as {move_aside(path, 'superseded').name}")
        made_from = {"source_model": source_model, "target_model": target_model, "texts": plan.TEXTS}
        made_from |= {"n_texts": len(documents), "model": " → ".join(names), "seconds": time.time() - start}
        made_from |= wanted | {"of_models": _weights(models)}  # a model of the Hub has a commit now
        save_artifact(path, result, made_from)
    result = load_artifact(path)
    for name, value in stretch(result).items():
        print(f"{name:17}{value:6.2f}  {MEASURES[name]}")
    print(path, *save(linear_maps_figure(result, *names), path.with_suffix("")), sep="\n")
    return 0


def _weights(models: Sequence[str]) -> list[dict]:
    """What is compared of each model: a hash of weights that are here, the commit of those on the Hub."""
    return [RunSpec({"MODEL": model}).weights for model in models]
