"""Integrated gradients: the same bits under any default dtype and autocast, and what they say of half precision."""

import contextlib

import pytest
import torch

import depth_lib as dl
from tests.probes.comparing import load

SUM, SHORT = ("5 + 7 + 5 = ", "17"), ("5 + 7 = ", "12")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the integrated gradients")
def test_bfloat16_takes_no_more_nodes_than_float32_and_states_a_bound_of_its_error():
    exact = dl.integrated_gradients(dl.load_model("toy-8l"), *SUM)
    with pytest.warns(
        UserWarning, match="have estimated errors of up to.*rounding exceeds the tolerance 0.01; raise"
    ) as said:
        rough = dl.integrated_gradients(dl.load_model("toy-8l", dtype="bfloat16"), *SUM)
    assert len(said) == 1 and rough["n_nodes"].sum() <= exact["n_nodes"].sum()
    off = (rough["igrads"] - exact["igrads"]).abs().amax(1) / exact["igrads"].abs().amax(1)
    assert (rough["error"] >= off).sum() >= 7, (rough["error"], off)


def test_max_nodes_and_what_is_missed_with_them(toy):
    with pytest.warns(UserWarning, match=r"blocks \[0, 1.* have estimated errors of up to .* raise max_nodes"):
        few = dl.integrated_gradients(toy, *SUM, max_nodes=20)
    assert few["n_nodes"].max() <= 20
    with pytest.raises(ValueError, match="max_nodes must be an integer of at least 9, got 0"):
        dl.integrated_gradients(toy, *SHORT, max_nodes=0)


@pytest.mark.parametrize("probe", [dl.integrated_gradients, dl.residual_erasure])
def test_the_bar_moves_with_each_block_or_pass(toy, monkeypatch, probe):
    shares = []
    monkeypatch.setattr("depth_lib.session.ticked", lambda label: contextlib.nullcontext(shares.append))
    probe(toy, *SUM, **({} if probe is dl.integrated_gradients else {"baseline_prompts": ["abc"], "budget": 50}))
    assert len(shares) >= len(toy.blocks) and min(shares) > 0 and sum(shares) == pytest.approx(1)


@pytest.mark.filterwarnings("ignore:the integrated gradients")
def test_increments_converge_to_the_integral(toy):
    result = dl.integrated_gradients(toy, *SHORT, quadrature=1e-5)
    truth, off, stated = result["igrads"], [], []
    for steps in (8, 16, 32):
        found = dl.integrated_gradients(toy, *SHORT, method="increments", steps=steps)
        off.append((found["igrads"] - truth).abs().amax(1) / truth.abs().amax(1))
        stated.append(found["error"])
    assert (torch.stack(off) <= torch.stack(stated) + 1e-5).all()
    # as well as the integral is known; where attributions are small, increments round as much as it does
    assert (off[2] <= torch.maximum(off[1] / 3, 3 * result["error"].clamp_min(1e-5))).all(), (off, result["error"])


def test_increments_of_a_mixture_of_experts_count_jumps_that_gradients_do_not():
    llm, _ = load("mixtral")
    slopes = dl.integrated_gradients(llm, *SHORT, quadrature="riemann")
    with pytest.warns(UserWarning, match="have estimated errors of up to"):
        found = dl.integrated_gradients(llm, *SHORT, method="increments")
    jumps = (slopes["completeness"] / slopes["f_difference"]).abs()
    off = (found["igrads"] - slopes["igrads"]).abs().amax(1) / found["igrads"].abs().amax(1)
    assert (jumps[:2] > 0.05).all() and (off[:2] > 0.05).all()
    assert jumps[-1] < 0.01 and off[-1] < 0.01, "no experts run after the last block"
