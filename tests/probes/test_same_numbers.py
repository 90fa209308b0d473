"""A probe's numbers do not depend on how its runs are packed."""

import pytest
import torch

import depth_lib as dl
from depth_lib.models.families import describe
from depth_lib.probes import distributions
from tests.families import build, make_identity
from tests.probes.comparing import ANSWER, QUESTION, SIXTY, close, compare_in_batch, load, loaded


@pytest.mark.parametrize("name, in_batch", [("llama", True), ("bloom", False), ("gemma2", False)])
def test_a_small_budget_gives_the_same_numbers(name, in_batch, tmp_path, monkeypatch):
    llm, _ = load(name, tmp_path)
    whole = measure(llm)
    if in_batch:
        compare_in_batch(monkeypatch)
    for key, value in measure(llm, budget=100).items():
        close(value, whole[key])


def measure(llm, budget=None):
    return {
        "future": dl.layer_effects(llm, [SIXTY], budget=budget)["max_future_layer"],
        "out": dl.layer_effects(llm, [SIXTY], mode="all", budget=budget)["max_all_out"],
        "kl": dl.layer_effects(llm, [SIXTY], mode="all", budget=budget, part="attention")["all_kl"],
        "local": dl.local_effects(llm, [SIXTY], budget=budget)["max_future_local"],
        "erasure": dl.residual_erasure(llm, QUESTION, ANSWER, [SIXTY], budget=budget)["erasure_effect"],
        "past": dl.future_erasure(llm, QUESTION, ANSWER, [SIXTY], budget=budget)["past_erasure"],
        "igrads": dl.integrated_gradients(llm, QUESTION, ANSWER, budget=budget)["igrads"],
    }


def test_plain_families_share_prefixes_and_passes():
    """Where a shortcut is taken to fail, the numbers are right and take twice as long."""
    arch = describe(dl.load_model("toy-4l"))
    assert arch["starts"] and arch["grows"] and arch["packs"] and arch["cuts"]


def test_bfloat16_effects_of_identity_blocks_are_exactly_zero(tmp_path):
    """An intervention is compared with a row of its own batch, so nothing but the intervention can differ."""
    llm = loaded(make_identity(build("llama", torch.bfloat16), (2, 3)), tmp_path)
    effects = dl.layer_effects(llm, [SIXTY])
    assert not effects["max_future_layer"][2:].any() and not effects["max_future_out"][2:].any()
    assert effects["max_future_out"][0] > 0


def test_the_clean_run_is_unembedded_once_however_many_passes_a_budget_takes(tmp_path, monkeypatch):
    llm, _ = load("llama", tmp_path)
    rows, unembedded = [], distributions.unembedded
    monkeypatch.setattr(
        distributions, "unembedded", lambda llm, arch, h: rows.append(len(h)) or unembedded(llm, arch, h)
    )
    dl.layer_effects(llm, [SIXTY], mode="all", budget=60)
    assert sum(rows) == 60 * (1 + len(llm.blocks))
