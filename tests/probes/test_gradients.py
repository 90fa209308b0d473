"""Integrated gradients: the same bits under any default dtype and autocast, and what they say of half precision."""

import contextlib
import warnings

import pytest
import torch

import depth_lib as dl
from depth_lib.data.tokens import answer_span
from depth_lib.models.families import describe
from depth_lib.probes import integrated_gradients as probe
from depth_lib.probes.integrated_gradients import integrated_gradients
from depth_lib.session import run
from tests.families import build
from tests.probes.comparing import loaded
from tests.probes.test_quadrature import integrate, path


@pytest.fixture(scope="module")
def gradients(tmp_path_factory):
    """gradients(at, steps): the probe's result for a small Llama."""
    llm = loaded(build("llama"), tmp_path_factory.mktemp("llama"))
    (ids, places, _), arch = answer_span(llm, "5 + 7 + 5 = ", "17"), describe(llm)

    def measured(at, steps):
        work = (arch, ids, places, [0, 2, 3], at, steps, 1e-3, None)
        return run(integrated_gradients, llm, *work, remote=False)

    return measured


@pytest.fixture
def default_dtype():
    before = torch.get_default_dtype()
    yield torch.set_default_dtype
    torch.set_default_dtype(before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("at", "steps"), [("block", None), ("attention", None), ("mlp", 8)])
def test_the_default_dtype_changes_no_bit(at, steps, dtype, gradients, default_dtype):
    truth = gradients(at, steps)
    default_dtype(dtype)
    for key, value in gradients(at, steps).items():
        assert value.dtype == torch.float32 and torch.equal(value, truth[key]), key


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_autocast_and_the_default_dtype_change_no_bit_of_the_quadrature(dtype, default_dtype):
    sample, _ = path((0.5, 0.3, 0.01), (-0.2, 0.7, 0.1))
    truth = integrate(sample, 1e-3, 1e-7)
    default_dtype(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = integrate(sample, 1e-3, 1e-7)
    assert torch.equal(found["integral"], truth["integral"])
    for key in ("n_nodes", "error"):
        assert found[key] == truth[key], key


@pytest.fixture(scope="module")
def both():
    """toy-8l's gradients in both precisions, with the warnings of bfloat16."""
    results = []
    for dtype in ("float32", "bfloat16"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results.append(dl.integrated_gradients(dl.load_model("toy-8l", dtype=dtype), "5 + 7 + 5 = ", "17"))
    return *results, [str(warning.message) for warning in caught]


def test_bfloat16_takes_no_more_nodes_than_float32_and_states_a_bound_of_its_error(both):
    exact, rough, said = both
    assert rough["n_nodes"].sum() <= exact["n_nodes"].sum()
    off = (rough["igrads"] - exact["igrads"]).abs().amax(1) / exact["igrads"].abs().amax(1)
    assert (rough["error"] >= off).sum() >= 7, (rough["error"], off)
    assert len(said) == 1 and "not known better than" in said[0] and "half precision is too coarse" in said[0]


def test_max_nodes_and_what_is_missed_with_them():
    llm = dl.load_model("toy-4l")
    with pytest.warns(UserWarning, match=r"blocks \[0, 1.* not known better than .* raise max_nodes"):
        few = dl.integrated_gradients(llm, "5 + 7 + 5 = ", "17", max_nodes=20)
    assert few["n_nodes"].max() <= 20
    with pytest.raises(ValueError, match="max_nodes is 0; give a whole number of at least 9"):
        dl.integrated_gradients(llm, "5 + 7 = ", "12", max_nodes=0)


def test_the_bar_moves_with_the_points_of_blocks_that_are_not_done(monkeypatch):
    shares, llm = [], dl.load_model("toy-4l")
    monkeypatch.setattr("depth_lib.session.ticked", lambda label: contextlib.nullcontext(shares.append))
    dl.integrated_gradients(llm, "5 + 7 + 5 = ", "17")
    assert len(shares) > 4 and min(shares) > 0 and sum(shares) == pytest.approx(1)


@pytest.mark.filterwarnings("ignore:the integrated gradients")
@pytest.mark.parametrize("at", ["block", "attention", "mlp"])
def test_increments_converge_to_the_integral(at):
    llm = dl.load_model("toy-4l")
    result = dl.integrated_gradients(llm, "5 + 7 + 5 = ", "17", quadrature=1e-5, at=at)
    truth, off, stated = result["igrads"], [], []
    for steps in (16, 32, 64):
        found = dl.integrated_gradients(llm, "5 + 7 + 5 = ", "17", at=at, method="increments", steps=steps)
        off.append((found["igrads"] - truth).abs().amax(1) / truth.abs().amax(1))
        stated.append(found["error"])
    assert (torch.stack(off) <= torch.stack(stated) + 1e-5).all()
    # as well as the integral is known; where attributions are small, increments round as much as it does
    assert (off[2] <= torch.maximum(off[1] / 3, 3 * result["error"].clamp_min(1e-5))).all(), (off, result["error"])


def test_only_some_blocks_paths_are_kept_at_once_and_no_zeros(monkeypatch):
    kept, paths = [], probe._paths
    monkeypatch.setattr(probe, "_paths", lambda *work: kept.append(paths(*work)) or kept[-1])
    llm = dl.load_model("toy-16l")
    monkeypatch.setattr(probe, "_KEPT", 8 * len(llm.tokenizer("5 + 7 = 1")["input_ids"]))
    dl.integrated_gradients(llm, "5 + 7 = ", "12", quadrature=1.0)
    assert [len(group) for group in kept] == [8, 8]
    assert all(path.rest == 0.0 and path.step.dim() == 2 for group in kept for path in group)
