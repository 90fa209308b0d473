"""Small studies whose effective depths are known, those of the papers' table among them."""

from depth_lib.effective_depth.rules import RULES
from depth_lib.effective_depth.tables import published_depths
from tests.synthetic import curves_with_depths, save


def write_depths(out, dataset, model, n_layers, cosine, kl, overlap):
    for probe, result in curves_with_depths(n_layers, cosine, kl, overlap).items():
        save(out, model, probe, dataset=dataset, result=result)


def write_published(out):
    """Results whose effective depths are the published ones."""
    for (model, dataset), rows in published_depths().groupby(["model", "dataset"]):
        write_depths(out, dataset, model, rows.layers.iloc[0], *rows.set_index("rule").ed[list(RULES)])
    return out
