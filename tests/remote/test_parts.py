"""A probe in one job or in several: how many, how large, and the same numbers however it is split."""

import pytest
import torch

import depth_lib as dl
from depth_lib.remote import NotReady, RequestRefused, journalled
from tests.remote.loopback.client import PROBES, SUM, TEXTS
from tests.remote.loopback.fixture import KEY, hurried, journal_beside, loopback, same  # noqa: F401 (fixtures)

LAYERED = PROBES | {"future_erasure": lambda llm, **where: dl.future_erasure(llm, *SUM, TEXTS, **where)}


def test_ten_prompts_of_a_32_block_model_are_one_small_job_a_probe(loopback):  # noqa: F811
    llm = loopback.model("loopback/deep")
    prompts = [f"{k} and 7 make {k + 7}" for k in range(10)]
    calls = [
        lambda **where: dl.relative_contribution(llm, prompts, **where),
        lambda **where: dl.layer_effects(llm, prompts, **where),
        lambda **where: dl.layer_effects(llm, prompts, mode="all", **where),
        lambda **where: dl.logit_lens(llm, prompts, **where),
        lambda **where: dl.residual_erasure(llm, *SUM, prompts, **where),
        lambda **where: dl.integrated_gradients(llm, *SUM, **where),
    ]
    for call in calls:
        since = len(loopback.asked()["log"])
        call(remote=loopback.host)
        (job,) = loopback.requests("POST", "/request", since)
        (download,) = loopback.requests("GET", "/results", since)
        assert int(job["headers"]["loopback-payload"]) < 20_000
        assert download["bytes"] < 1_000_000


def test_a_split_run_equals_the_unsplit_one(loopback, monkeypatch):  # noqa: F811
    llm = loopback.model("loopback/llama")
    for probe in ("relative_contribution", "layer_effects", "logit_lens"):
        with loopback.faults() as submitted:
            whole = PROBES[probe](llm, remote=loopback.host)
            assert submitted() == 1
        with loopback.faults() as submitted, monkeypatch.context() as patch:
            patch.setenv("DEPTH_LIB_PROMPTS_PER_JOB", "1")
            same(PROBES[probe](llm, remote=loopback.host), whole)
            assert submitted() == 3


@pytest.mark.parametrize("probe", ["residual_erasure", "future_erasure", "integrated_gradients"])
def test_layers_in_several_jobs_equal_all_in_one(loopback, monkeypatch, probe):  # noqa: F811
    llm = loopback.model("loopback/llama")  # of 4 blocks
    whole = LAYERED[probe](llm, remote=loopback.host)
    for size, jobs in ((1, 4), (3, 2), (4, 1)):
        monkeypatch.setenv("DEPTH_LIB_LAYERS_PER_JOB", str(size))
        with loopback.faults() as submitted:
            split = LAYERED[probe](llm, remote=loopback.host)
            assert submitted() == jobs
        rounded = {"erasure_effect", "future_erasure", "past_erasure"} & whole.keys()  # by the size of a batch
        for key in rounded:
            effect = whole[key]
            assert torch.allclose(split[key], effect, rtol=0, atol=1e-6 * effect.max().item())
        same(*({key: found[key] for key in found.keys() - rounded} for found in (split, whole)))


def test_erasure_interrupted_between_blocks_of_layers_repeats_none_that_arrived(loopback, monkeypatch, tmp_path):  # noqa: F811
    llm, artifact = loopback.model("loopback/llama"), tmp_path / "logit_erasure_3exps.pt"
    monkeypatch.setenv("DEPTH_LIB_LAYERS_PER_JOB", "1")
    whole = PROBES["residual_erasure"](llm, remote=loopback.host)
    with loopback.faults(post=[None, None, 400]) as submitted:
        with pytest.raises(RequestRefused), journalled(artifact):
            PROBES["residual_erasure"](llm, remote=loopback.host)
        assert submitted() == 2
    assert sorted(entry["part"] for entry in journal_beside(artifact)) == ["1 of 4", "2 of 4", "3 of 4"]
    with loopback.faults() as submitted, journalled(artifact):
        same(PROBES["residual_erasure"](llm, remote=loopback.host), whole)
        assert submitted() == 2


@pytest.mark.parametrize("variable", ["DEPTH_LIB_PROMPTS_PER_JOB", "DEPTH_LIB_DEADLINE"])
def test_a_setting_that_is_no_number_is_named(loopback, monkeypatch, variable):  # noqa: F811
    monkeypatch.undo()
    monkeypatch.setenv("NDIF_API_KEY", KEY)
    monkeypatch.setenv(variable, "many")
    with pytest.raises(NotReady, match=f"{variable} is 'many'"):
        dl.logit_lens(loopback.model("loopback/llama"), TEXTS, remote=loopback.host)


def test_a_run_interrupted_between_parts_repeats_none_that_arrived(loopback, monkeypatch, tmp_path):  # noqa: F811
    llm, artifact = loopback.model("loopback/llama"), tmp_path / "logitlens_3exps.pt"
    whole = dl.logit_lens(llm, TEXTS, remote=loopback.host)
    monkeypatch.setenv("DEPTH_LIB_PROMPTS_PER_JOB", "1")
    with loopback.faults(post=[None, None, 400]) as submitted:
        with pytest.raises(RequestRefused), journalled(artifact):
            dl.logit_lens(llm, TEXTS, remote=loopback.host)
        assert submitted() == 2
    assert len(list((tmp_path / "logitlens_3exps.pt.job").glob("*.result"))) == 2
    with loopback.faults() as submitted, journalled(artifact):
        same(dl.logit_lens(llm, TEXTS, remote=loopback.host), whole)
        assert submitted() == 1
    assert not list(tmp_path.iterdir())


def test_depth_by_difficulty_on_a_server_equals_the_same_here(loopback):  # noqa: F811
    llm, here = loopback.model("loopback/llama"), loopback.here("loopback/llama")
    examples = dl.load_examples("sums", 2)
    with loopback.faults() as submitted:
        same(dl.depth_by_difficulty(llm, examples, remote=loopback.host), dl.depth_by_difficulty(here, examples))
        assert submitted() == 1
