"""fit_lens against plain autograd and normal equations; what it keeps, and what interrupts it."""

import pytest
import torch

import depth_lib as dl
from depth_lib.data.tokens import tokenize
from depth_lib.lenses import fit as module
from depth_lib.lenses.files import LensError
from depth_lib.lenses.jacobian import measure_jacobian
from depth_lib.models.families import describe
from depth_lib.session import run
from tests.families import ARCHETYPES, build, make_identity, of_families
from tests.oracles import lenses as oracle
from tests.oracles.streams import block_states
from tests.probes.comparing import SIXTY, close, load, loaded

TEXTS = [SIXTY[:20], SIXTY[10:32], SIXTY[25:50], SIXTY[::-1][:24]]


@pytest.fixture(scope="module")
def llama():
    return load("llama")


@pytest.mark.parametrize("name", of_families(ARCHETYPES))
def test_the_jacobian_is_autograds(name):
    """In passes of five rows, of which the last is not full, and in one."""
    llm, model = load(name)
    (ids,) = tokenize(llm, TEXTS[:1])
    truth = oracle.jacobian(model, torch.tensor(ids))
    for budget in (None, 5 * len(ids)):
        close(run(measure_jacobian, llm, describe(llm), ids, budget)["A"], truth)


def test_through_identities_the_jacobian_is_one():
    llm = loaded(make_identity(build("llama"), [2, 3]))
    (ids,) = tokenize(llm, TEXTS[:1])
    A = run(measure_jacobian, llm, describe(llm), ids)["A"]
    assert torch.equal(A[2:], torch.eye(48).expand(2, -1, -1))


def test_texts_count_equally_and_short_ones_are_left_out(llama):
    llm, model = llama
    with pytest.warns(UserWarning, match="^1 texts with fewer than 18 tokens are left out$"):
        ours = dl.fit_lens(llm, [*TEXTS[:2], "8 apples"])
    truth = torch.stack([oracle.jacobian(model, torch.tensor(ids)) for ids in tokenize(llm, TEXTS[:2])]).mean(0)
    close(ours["A"], truth)
    assert ours["kind"] == "jacobian" and not ours["b"].any() and ours["b"].shape == ours["A"].shape[:2]


def ridge_states(model, llm, texts, layer):
    states = []
    for ids in tokenize(llm, texts):
        h, _ = block_states(model, torch.tensor(ids))
        states.append((h[layer][1:], h[-1][1:]))
    return states


@pytest.fixture(scope="module")
def many():
    """Enough text for 48 features: 40 shuffles of the sentence's words, of which 4 choose the penalty."""
    words, draw = SIXTY.split(), torch.Generator().manual_seed(0)
    return [" ".join(words[k] for k in torch.randperm(len(words), generator=draw)) for _ in range(40)]


def test_the_ridge_is_that_of_the_normal_equations_with_the_penalty_that_held_out_texts_choose(llama, many):
    llm, model = llama
    ours = dl.fit_lens(llm, many, "ridge")
    for layer in (0, 3):
        states = ridge_states(model, llm, many, layer)
        choose, fit = states[1::10], [one for k, one in enumerate(states) if k % 10 != 1]
        errors = {}
        for strength in (1e-12, 1e-9, 1e-6, 1e-3, 1.0):
            A, b = oracle.ridge(fit, strength)
            errors[strength] = sum((((x @ A.T + b - y) / y.norm(dim=1, keepdim=True)) ** 2).sum() for x, y in choose)
        A, b = oracle.ridge(fit, min(errors, key=errors.get))
        close(ours["A"][layer], A, 1e-3)
        close(ours["b"][layer], b, 1e-3, scale=A.abs().max())


@pytest.mark.parametrize("kind", ["jacobian", "ridge"])
def test_an_interrupted_fit_goes_on_at_the_next_text(kind, llama, tmp_path, monkeypatch, capsys):
    llm, _ = llama
    whole = dl.fit_lens(llm, TEXTS, kind)
    monkeypatch.setattr(module, "_EVERY", 0.0)
    path, of_text, seen = tmp_path / "lens.pt", module.run, []

    def stops_at_the_third(*args, **named):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(1)
        return of_text(*args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(module, "run", stops_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            dl.fit_lens(llm, TEXTS, kind, path)
    assert not path.exists(), "half a lens is not a lens"
    monkeypatch.setattr(module, "run", lambda *args, **named: seen.append(1) or of_text(*args, **named))
    resumed = dl.fit_lens(llm, TEXTS, kind, path)
    assert len(seen) == 4 and "2 texts are done" in capsys.readouterr().out
    assert torch.equal(resumed["A"], whole["A"]) and torch.equal(resumed["b"], whole["b"])
    assert [file.name for file in tmp_path.iterdir()] == ["lens.pt"]


def test_numbers_that_are_not_finite_are_no_lens(llama, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "run", lambda *args, **named: {"A": torch.full((4, 48, 48), torch.nan)})
    with pytest.raises(LensError, match="not finite.*float32"):
        dl.fit_lens(llama[0], TEXTS[:1], path=tmp_path / "lens.pt")
    assert not (tmp_path / "lens.pt").exists()
