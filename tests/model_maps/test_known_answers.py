"""Pairs of models whose maps are known beforehand."""

import numpy as np
import pytest
import torch

import depth_lib as dl
from depth_lib.model_maps import maps
from depth_lib.model_maps.stretch import stretch
from depth_lib.model_maps.texts import TextError, cut
from tests.model_maps.models import llama, padded, words, wrapped
from tests.model_maps.test_regression import relative_errors, ridge_by_numpy
from tests.oracles.streams import block_states

TEXTS = words(40)


@pytest.fixture(scope="module")
def shallow():
    return wrapped(llama())


def test_a_model_predicts_its_own_contributions_without_error_and_every_other_with_one(shallow):
    result = dl.linear_maps(shallow, shallow, TEXTS, what="contribution")
    relative = result["relative"]
    assert relative.shape == (3, 3) and relative.diagonal().max() < 1e-5
    assert (relative + torch.eye(3) > 0.05).all()  # the last row and column among them
    assert result["best"].tolist() == [0, 1, 2]


def test_identity_blocks_between_a_models_own_give_the_stretched_diagonal_exactly(shallow):
    result = dl.linear_maps(shallow, wrapped(padded(llama())), TEXTS)
    assert result["best"].tolist() == [0, 1, 1, 2, 2, 3, 3]
    assert all(result["relative"][(l + 1) // 2, l] < 1e-5 for l in range(7))
    assert stretch(result)["predicted"] == 1


def test_a_target_that_is_noise_is_predicted_no_better_than_by_its_mean_although_the_fit_is_close(shallow, monkeypatch):
    target, read = wrapped(llama(seed=4)), maps._states

    def noise(llm, ids, what):
        if llm is not target:
            return read(llm, ids, what)
        return torch.randn(4, len(ids), 16, generator=torch.Generator().manual_seed(sum(ids)))

    monkeypatch.setattr(maps, "_states", noise)
    with pytest.warns(UserWarning, match="tokens are few"):
        result = dl.linear_maps(shallow, target, words(12, length=8))
    assert result["n_fit_tokens"] < 6 * 16  # tokens it was fitted on would show an error of 0.9 of the mean's
    assert (result["relative"] > 0.97 * result["relative_mean"]).all()


def test_a_token_whose_beginning_was_fitted_on_is_not_tested(shallow):
    same = "the same beginning of every text "
    texts = [same + text for text in words(40, length=10)]
    result = dl.linear_maps(shallow, shallow, texts)
    assert result["n_tokens"].max() <= 10
    with pytest.raises(TextError, match="every text to test on is one that the maps were fitted on"):
        dl.linear_maps(shallow, shallow, texts[:1] * 40)


def test_the_errors_are_those_of_numpy_fitted_and_tested_on_the_same_tokens(shallow):
    """From hooks on the models to the reported number, without the package."""
    target = wrapped(llama(seed=6, n_blocks=2, width=24))
    result = dl.linear_maps(shallow, target, TEXTS)
    excerpts = cut([shallow.tokenizer(text)["input_ids"] for text in TEXTS], 256, 16)

    def states(llm, split):
        own = [excerpt for excerpt in excerpts if excerpt.split == split]
        return np.concatenate([block_states(llm._module, e.ids)[0][:, e.seen :].detach().numpy() for e in own], 1)

    fit, test = ([states(llm, split) for llm in (shallow, target)] for split in ("fit", "test"))
    for m in range(4):
        for l in range(3):
            both = ridge_by_numpy(fit[0][m], fit[1][l], float(result["strength"][m, l]))
            truth = relative_errors(both, test[0][m], test[1][l]).mean()
            assert abs(result["relative"][m, l] - truth) <= 1e-5 * max(truth, 0.1)
