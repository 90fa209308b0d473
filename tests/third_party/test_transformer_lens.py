"""Contributions and lens against TransformerLens' bridge, which has its own idea of what attention and MLP add.

Where the bridge does not give the checkpoint's own logits it cannot be an oracle; `WRONG` says of which families, and
why transformers is right there.
"""

import warnings

import pytest
import torch
from torch.nn.functional import cosine_similarity

import depth_lib as dl
from tests.third_party.conftest import TEXT, apart, assert_near

bridge = pytest.importorskip("transformer_lens.model_bridge", reason="pip install transformer-lens: make test-oracles")

WRONG = {
    "falcon_sequential": "the bridge equals eager attention, which differs here from sdpa, with which a model loads",
    "falcon_new": "the bridge splits the bias of queries, keys and values as if it were laid out by kind; it fails",
}
PARALLEL = ("gptj", "phi", "cohere", "gpt_neox", "falcon", "stablelm_parallel")
TOLERANCE = 1e-4  # float32 sums in another order; SmolLM2's first token has 60 times the others' norm


@pytest.fixture(scope="module")
def theirs(model, ids):
    """The bridge, and what it cached of one run."""
    name, folder, _ = model
    if name in WRONG:
        pytest.skip(WRONG[name])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        booted = bridge.TransformerBridge.boot_transformers(str(folder), device="cpu", dtype=torch.float32)
    with torch.no_grad():
        logits, cache = booted.run_with_cache(ids)
    return booted, logits[0], cache


def curves(name, booted, cache):
    """The cosines and norm ratios by their definition, of the bridge's residual stream."""
    h, a, m = (
        torch.cat([cache[f"blocks.{l}.hook_{part}"] for l in range(booted.cfg.n_layers)])
        for part in ("resid_pre", "attn_out", "mlp_out")
    )
    read = h if name in PARALLEL else h + a
    return {
        "att_cos": cosine_similarity(a, h, dim=-1).mean(-1),
        "mlp_cos": cosine_similarity(m, read, dim=-1).mean(-1),
        "layer_cos": cosine_similarity(a + m, h, dim=-1).mean(-1),
        "rc_att": (a.norm(dim=-1) / h.norm(dim=-1)).mean(-1),
        "rc_mlp": (m.norm(dim=-1) / read.norm(dim=-1)).mean(-1),
        "rc_layer": ((a + m).norm(dim=-1) / h.norm(dim=-1)).mean(-1),
    }


def lens_curves(booted, cache, logits):
    """KL and overlap of the bridge's own final norm and unembedding at each block's input."""
    log_y = logits.log_softmax(-1)
    top = log_y.topk(5).indices
    kl, overlaps = [], []
    for l in range(booted.cfg.n_layers):
        log_p = unembedded(booted, cache[f"blocks.{l}.hook_resid_pre"]).log_softmax(-1)
        kl.append((log_p.exp() * (log_p - log_y)).sum(-1).mean())
        shared = (log_p.topk(5).indices[:, :, None] == top[:, None, :]).sum((1, 2)) / 5
        overlaps.append(shared.mean())
    return torch.stack(kl), torch.stack(overlaps)


def unembedded(booted, h):
    with torch.no_grad():
        return booted.unembed(booted.ln_final(h))[0]


def test_the_bridge_gives_the_checkpoints_own_logits(model, theirs, ids):
    own = model[2]._module(ids).logits[0]
    assert_near(theirs[1], own, 1e-5)


def test_cosines_and_norm_ratios_are_those_of_the_bridge(model, theirs):
    name, _, llm = model
    ours = dl.relative_contribution(llm, [TEXT])
    for key, curve in curves(name, theirs[0], theirs[2]).items():
        assert_near(ours[key], curve, TOLERANCE)


def test_the_lens_is_that_of_the_bridge(model, theirs):
    name, _, llm = model
    booted, logits, cache = theirs
    if not hasattr(booted, "ln_final"):
        pytest.skip(f"{name}: the bridge has no final norm, which this checkpoint has not either")
    last = cache[f"blocks.{booted.cfg.n_layers - 1}.hook_resid_post"]
    if apart(unembedded(booted, last), logits) > 1e-5:
        pytest.skip(f"{name}: the bridge has no module for what comes between unembedding and logits")
    ours = dl.logit_lens(llm, [TEXT])
    kl, overlaps = lens_curves(booted, cache, logits)
    assert_near(ours["res_kl_divs"], kl, TOLERANCE)
    assert_near(ours["res_overlaps"], overlaps, 1e-6)
