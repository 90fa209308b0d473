"""Pairs of models whose maps are known beforehand, and errors by numpy from hooks on the models."""

import random

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import depth_lib as dl
from depth_lib.effective_depth.intervals import NoInterval
from depth_lib.maps import HELD_OUT, stretch
from tests import families
from tests.oracles.streams import block_states
from tests.tiny_tokenizers import char_tokenizer

WIDTH = 16


def texts(n, length=40, seed=0):
    """Random letters."""
    draw = random.Random(seed)
    return ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz .,", k=length)) for _ in range(n)]


def llama(n_blocks=3, seed=0, width=WIDTH):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        shape = families.SHAPE | {"hidden_size": width, "num_hidden_layers": n_blocks, "intermediate_size": 2 * width}
        model = LlamaForCausalLM(LlamaConfig(**shape))
        families.randomise(model)
    return model


def wrapped(model):
    return dl.load_model(model, char_tokenizer())


def doubled(model, stretched):
    """Twice as many blocks, the new ones silent: each behind one of the model's own, or all of them at the end."""
    n = model.config.num_hidden_layers
    larger = llama(2 * n)
    places = [2 * l if stretched else l for l in range(n)]
    for l, place in enumerate(places):
        larger.model.layers[place].load_state_dict(model.model.layers[l].state_dict())
    larger.model.embed_tokens.load_state_dict(model.model.embed_tokens.state_dict())
    return families.make_identity(larger, {*range(2 * n)} - {*places})


@pytest.fixture(scope="module")
def shallow():
    return wrapped(llama())


@pytest.mark.slow
def test_a_model_is_mapped_to_itself_without_error_and_with_slope_one(shallow):
    result = dl.linear_maps(shallow, shallow, texts(40))
    assert result["best"].tolist() == [0, 1, 2, 3] and result["relative"].diagonal().max() < 2e-3
    assert tuple(stretch(result)) == pytest.approx((1, 1, 1))
    added = dl.linear_maps(shallow, shallow, texts(40), what="contribution")
    assert added["relative"].shape == (3, 3) and added["best"].tolist() == [0, 1, 2]
    assert (added["relative"] + torch.eye(3) > 0.05).all()


def test_identity_blocks_between_a_models_own_give_the_stretched_line_and_at_the_end_another(shallow):
    result = dl.linear_maps(shallow, wrapped(doubled(llama(), stretched=True)), texts(40))
    assert result["best"].tolist() == [0, 1, 1, 2, 2, 3, 3]
    target = np.arange(7) / 6
    assert stretch(result).value == pytest.approx((np.array([0, 1, 1, 2, 2, 3, 3]) / 3) @ target / (target @ target))
    at_the_end = dl.linear_maps(shallow, wrapped(doubled(llama(), stretched=False)), texts(40))
    assert at_the_end["best"].tolist() == [0, 1, 2, 3, 3, 3, 3]
    hashes = [maps["meta"]["model_hash"].split(" to ") for maps in (result, at_the_end)]
    assert hashes[0][0] == hashes[1][0] and len({hashes[0][1], hashes[1][1], hashes[0][0]}) == 3
    assert stretch(at_the_end).value == pytest.approx(
        (np.array([0, 1, 2, 3, 3, 3, 3]) / 3) @ target / (target @ target)
    )


@pytest.mark.parametrize("what", ["residual", "contribution"])
def test_the_errors_are_those_of_weighted_least_squares_by_numpy(shallow, what):
    """From hooks on the models to the reported number, without the package's arithmetic."""
    target, given = wrapped(llama(2, seed=6, width=24)), texts(40)
    result = dl.linear_maps(shallow, target, given, what)
    ids = [shallow.tokenizer(text)["input_ids"] for text in given]
    states = [[block_states(llm._module, one)[0].detach().double().numpy() for one in ids] for llm in (shallow, target)]
    if what == "contribution":
        states = [[np.diff(of_text, axis=0) for of_text in of_model] for of_model in states]
    for m, l in np.ndindex(*result["relative"].shape):
        x, y = ([of_text[k] for of_text in of_model] for of_model, k in zip(states, (m, l), strict=True))
        fit = [k for k in range(40) if k % HELD_OUT]
        rows, h = np.concatenate([x[k] for k in fit]), np.concatenate([y[k] for k in fit])
        rows, weights = np.hstack([rows, np.ones((len(rows), 1))]), 1 / np.linalg.norm(h, axis=1, keepdims=True)
        W = np.linalg.lstsq(rows * weights, h * weights, rcond=1e-8)[0]
        for p, k in enumerate(range(0, 40, HELD_OUT)):
            wrong = np.linalg.norm(np.hstack([x[k], np.ones((len(x[k]), 1))]) @ W - y[k], axis=1)
            truth = (wrong / np.linalg.norm(y[k], axis=1)).sum()
            assert result["relative_sums"][p, m, l] == pytest.approx(truth, rel=5e-3, abs=0.02)
    assert torch.allclose(result["relative"], result["relative_sums"].sum(0) / result["n_tokens"].sum())


def test_the_interval_of_the_slope_leaves_each_text_out():
    """Two held-out texts say that layer 1 is best, and two say layer 2."""
    relative = np.ones((4, 3, 3))
    relative[:, 0, 0] = relative[:, 1, 1] = 0.5
    relative[:2, 1, 2], relative[2:, 2, 2] = 0.3, 0.28
    slope = stretch({"relative_sums": relative, "n_tokens": np.ones(4)})
    target = np.array([0, 0.5, 1])
    with_two, with_one = (np.array([0, 0.5, end]) @ target / (target @ target) for end in (1, 0.5))
    assert slope.value == with_two
    values = np.array([with_two, with_two, with_one, with_one])
    half = 3.182446 * np.sqrt(3 / 4 * ((values - values.mean()) ** 2).sum())
    assert (slope.low, slope.high) == pytest.approx((slope.value - half, slope.value + half), rel=1e-5)


def test_one_source_layer_at_a_time_is_in_memory_and_the_disk_is_left_clean(shallow, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    seen = []
    from depth_lib import maps as module

    solved = module.solved
    monkeypatch.setattr(module, "solved", lambda sums, *how: (seen.append(tuple(sums.shape)), solved(sums, *how))[1])
    dl.linear_maps(shallow, shallow, texts(40))
    assert set(seen) == {(WIDTH + 1, 2 * WIDTH + 1)} and len(seen) == 16
    assert not [*tmp_path.iterdir()]


def test_what_has_no_maps_is_refused_in_words(shallow):
    with pytest.raises(ValueError, match='what="x" is not valid; use'):
        dl.linear_maps(shallow, shallow, texts(40), what="x")
    with pytest.raises(
        ValueError, match="tokens are too few to fit maps with 16 inputs; use at least 64 .*is held out"
    ):
        dl.linear_maps(shallow, shallow, texts(2))
    with pytest.raises(ValueError, match="the tokenizers differ on text 0"):
        dl.linear_maps(shallow, dl.load_model("toy-4l"), texts(40))
    broken = llama()
    with torch.no_grad():
        broken.model.layers[1].mlp.down_proj.weight[0, 0] = torch.inf
    with pytest.raises((ValueError, dl.ModelError), match="finite"):
        dl.linear_maps(shallow, wrapped(broken), texts(40))
    few = {"relative_sums": np.ones((2, 3, 3)), "n_tokens": np.ones(2)}
    with pytest.raises(NoInterval, match="^2 held-out texts are too few; use linear_maps with at least 21 texts$"):
        stretch(few)
