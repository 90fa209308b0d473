"""What the results under a folder were made from, a row a run, as their files say."""

import pandas as pd

from ..results.schemas import ARTIFACTS
from ..results.study import Study


def provenance_table(study: Study) -> pd.DataFrame:
    """Columns "Run" (model, dataset) and "Made from": model id and revision, dtype, prompts, where, when, versions.

    One row for all probes of a run that were made alike; probes that were not are named. Files without `meta` say so.
    """
    made: dict[tuple[str, str], dict[str, list[str]]] = {}
    for probe in ARTIFACTS:
        for (dataset, model), result in study.of(probe).items():
            made.setdefault((model, dataset), {}).setdefault(_made_from(result["meta"]), []).append(probe)
    rows = []
    for model in study.models:
        for dataset in study.datasets:
            for text, probes in made.get((model, dataset), {}).items():
                rows.append((f"{model}, {dataset}", f"{', '.join(probes)}: {text}"))
    return pd.DataFrame(rows, columns=["Run", "Made from"])


def _made_from(meta: dict) -> str:
    if not meta:
        return "not known, the files have no meta (not written by depth_lib)"
    weights = f"weights {meta['weights']}" if meta.get("weights") else None
    revision = meta.get("commit") or meta.get("revision") or weights
    model = f"{meta.get('model_id', 'model not said')}{f' @ {revision}' if revision else ''}"
    prompts = f"{meta.get('n_prompts', meta.get('n_examples', '?'))} prompts"
    details = ", ".join(str(meta[key]) for key in ("source", "prompts_hash") if meta.get(key))
    versions = " ".join(f"{package} {version}" for package, version in meta.get("versions", {}).items())
    parts = [
        model,
        meta.get("dtype"),
        meta.get("quantization"),
        f"{prompts} ({details})" if details else prompts,
        f"seed {meta['seed']}" if meta.get("seed") is not None else None,
        meta.get("where"),
        str(meta.get("date", ""))[:10],
        versions,
    ]
    return "; ".join(str(part) for part in parts if part)
