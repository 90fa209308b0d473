"""What is told of a probe's progress, and to whom."""

import pytest
import torch

import depth_lib as dl
from depth_lib import api
from depth_lib.progress import heard_by, steps
from depth_lib.session import run


def test_who_listens_is_told_before_each_prompt_and_at_the_end():
    heard = []
    with heard_by(lambda *words: heard.append(words)):
        assert list(steps(["a", "b"], "logit lens", "layer")) == ["a", "b"]
    assert heard == [("logit lens", done, 2, "layer", done / 2) for done in (0, 1, 2)]
    assert list(steps(["a"], "logit lens")) == ["a"] and len(heard) == 3, "only inside the block"


def test_the_share_that_is_done_is_that_of_the_costs():
    heard = []
    with heard_by(lambda *words: heard.append(words)):
        list(steps([[0], [1], [2]], "gradients", unit="part", costs=[3, 2, 1]))
    assert [share for *_, share in heard] == [0, 3 / 6, 5 / 6, 1] and heard[0] == ("gradients", 0, 3, "part", 0)


def test_what_is_piped_has_no_bar(capfd):
    assert list(steps(range(3), "logit lens")) == [0, 1, 2]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("probe", ["residual_erasure", "future_erasure"])
def test_erasure_says_how_far_it_is_and_gives_the_same_numbers(probe, monkeypatch):
    llm, heard = dl.load_model("toy-4l"), []
    work = (llm, "5 + 7 + 5 = ", "17", dl.load_prompts("gsm8k", 3, source="embedded"))
    with heard_by(lambda *words: heard.append(words)):
        found = getattr(dl, probe)(*work)
    shares = [share for *_, share in heard]
    assert shares[0] == 0 and shares[-1] == 1 and len(shares) >= 1 + 3 + 4 and shares == sorted(set(shares)), (
        "3 prompts, then blocks"
    )
    assert {label for label, *_ in heard} == {probe.replace("_", " ")}
    monkeypatch.setattr(api, "run_ticking", run)
    silent = getattr(dl, probe)(*work)
    assert all(torch.equal(found[key], silent[key]) for key in silent if key != "tokens")


def test_gradients_say_how_far_they_are_block_by_block():
    llm, heard = dl.load_model("toy-4l"), []
    with heard_by(lambda *words: heard.append(words)):
        dl.integrated_gradients(llm, "5 + 7 = ", "12")
    shares = [share for *_, share in heard]
    assert shares[0] == 0 and shares[-1] == 1 and len(shares) == 1 + 4 and shares == sorted(set(shares))
    assert {label for label, *_ in heard} == {"integrated gradients"}
