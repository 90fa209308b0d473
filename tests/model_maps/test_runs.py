"""What surrounds the arithmetic: memory, killed runs, models one after the other or on a server, and bad input."""

import os
import re
import signal

import datasets
import pytest
import torch

import depth_lib as dl
from depth_lib.model_maps import checkpoint, plan, reading
from depth_lib.model_maps.checkpoint import resumable
from depth_lib.model_maps.texts import TextError, read_texts
from tests.model_maps.models import llama, words, wrapped

TEXTS = words(40)
KEYS = {"relative", "relative_mean", "best", "strength", "relative_sums", "mean_sums", "n_tokens", "n_fit_tokens"}


@pytest.fixture(scope="module")
def pair():
    return wrapped(llama()), wrapped(llama(seed=1, n_blocks=5, width=24))


@pytest.fixture(scope="module")
def truth(pair):
    return dl.linear_maps(*pair, TEXTS)


def same(result, truth, tolerance=0.0):
    assert result.keys() == truth.keys() == KEYS
    for key, value in truth.items():
        if key != "strength" or not tolerance:
            assert torch.allclose(result[key], value, rtol=tolerance, atol=0), key


def test_the_curves_are_the_sums_over_tested_tokens(truth):
    n_tokens = truth["n_tokens"].sum()
    assert torch.allclose(truth["relative"], truth["relative_sums"].sum(0) / n_tokens)
    assert torch.allclose(truth["relative_mean"], truth["mean_sums"].sum(0) / n_tokens)


def one_map(pair, **more):
    return plan.bytes_of(more.pop("s", 1), more.pop("t", 1), 16, 24, 1024)


@pytest.mark.parametrize(("s", "t"), [(1, 1), (4, 2), (2, 6)])
def test_layers_in_groups_that_fit_give_what_one_pass_gives(pair, truth, s, t, capsys):
    result = dl.linear_maps(*pair, TEXTS, memory=one_map(pair, s=s, t=t))
    said = re.search(r"24 linear maps in (\d+) passes over the text, at most [\d.]+ GB on cpu", capsys.readouterr().out)
    assert int(said[1]) <= 24 / (s * t) and int(said[1]) > 1
    same(result, truth, 1e-5)


def test_less_memory_than_one_map_takes_is_refused_with_both_numbers(pair):
    with pytest.raises(plan.TooLarge, match=r"a single map needs [\d.]+ GB and 0.00 GB may be used on cpu"):
        dl.linear_maps(*pair, TEXTS, memory=1000)


def test_a_process_killed_while_it_writes_leaves_the_state_before(pair, truth, monkeypatch, tmp_path):
    monkeypatch.setattr(checkpoint, "_PAUSE", 0.0)
    child = os.fork()
    if not child:
        torch.save, saved = _dying_save(torch.save), None  # noqa: F841
        with resumable(tmp_path / "a.pt"):
            dl.linear_maps(*pair, TEXTS)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert any(path.suffix == ".part" for path in tmp_path.iterdir())
    with resumable(tmp_path / "a.pt"):
        same(dl.linear_maps(*pair, TEXTS), truth)
    assert list(tmp_path.iterdir()) == []


def _dying_save(save):
    calls = []

    def dying(state, file):
        calls.append(1)
        save(state, file)
        if len(calls) == 3:
            file.truncate(1000)
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    return dying


def test_the_state_of_other_models_texts_or_settings_is_not_gone_on_with(pair, monkeypatch, tmp_path):
    monkeypatch.setattr(checkpoint, "_PAUSE", 0.0)
    kept, write = set(), checkpoint.write
    monkeypatch.setattr(checkpoint, "write", lambda state, path: (kept.add(path.name), write(state, path)))
    other = llama()
    with torch.no_grad():
        other.model.layers[2].mlp.down_proj.weight[0, 0] += 1
    for asked in (
        (*pair, TEXTS), (pair[1], pair[1], TEXTS), (wrapped(other), pair[1], TEXTS), (*pair, words(40, seed=9)),
        (*pair, TEXTS, "contribution"), (*pair, TEXTS, "residual", 0.2),
    ):  # fmt: skip
        with resumable(tmp_path / "a.pt"):
            dl.linear_maps(*asked)
    assert len(kept) == 6


def test_a_model_in_bfloat16_is_read_and_one_whose_half_precision_overflows_is_refused():
    llm = wrapped(llama(dtype=torch.bfloat16))
    assert dl.linear_maps(llm, llm, TEXTS)["relative"].diagonal().max() < 1e-5
    broken = llama()
    with torch.no_grad():
        broken.model.layers[1].mlp.down_proj.weight.mul_(1e9)
    broken = wrapped(broken.half())
    with pytest.raises(reading.CannotRead, match='at layer 2 that are not finite: float16 overflows.*dtype="bfloat16"'):
        dl.linear_maps(llm, broken, TEXTS)


@pytest.mark.parametrize(
    ("texts", "more", "said"),
    [
        (words(2, 20), {}, r"\d+ tokens to fit maps of 16 inputs .of 42,.*give at least 64, better 320"),
        (TEXTS, {"holdout": 0.5}, "holdout 0.5 is no share of the text"),
        (TEXTS, {"what": "logits"}, "what 'logits' is not known"),
        ("nowhere.txt", {}, "no text 'nowhere.txt'; give \"embedded\", the path"),
    ],
)
def test_bad_input_is_refused_in_one_line(pair, texts, more, said):
    with pytest.raises(ValueError, match=said) as raised:
        dl.linear_maps(*pair, texts, **more)
    assert "\n" not in str(raised.value)


def test_few_tokens_are_warned_about(pair):
    with pytest.warns(UserWarning, match="tokens are few for maps of 16 inputs: .*; 320 would do"):
        dl.linear_maps(*pair, words(8))


def test_texts_come_from_a_file_the_package_or_a_streamed_hub_dataset(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n\n\n\nthree", encoding="utf-8")
    assert read_texts(tmp_path / "a.txt") == ["one", "two", "\n\nthree"[2:]]
    assert read_texts(tmp_path / "a.txt", 6) == ["one", "t"]
    assert len(read_texts("embedded")) >= 36
    asked, drawn = [], []

    def load_dataset(*name, split, streaming):
        asked.append((*name, split, streaming))
        return ({"text": (drawn.append(n), "word " * 20)[1]} for n in range(10**9))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert len(read_texts("owner/corpus:en:validation", 1000)) == 10 == len(drawn)
    assert asked == [("owner/corpus", "en", "validation", True)]
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: [{"words": "a"}])
    with pytest.raises(TextError, match="has no column of text called text .it has words."):
        read_texts("owner/corpus")
