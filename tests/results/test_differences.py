"""Whether a stored result is the one that is asked for, and what differs where it is not."""

import re
import warnings

import pytest
import torch

from depth_lib.results.artifacts import differences, save_artifact
from depth_lib.results.meta import prompts_hash, ran_otherwise, read_meta
from depth_lib.results.study import Study
from tests.results.conftest import META
from tests.synthetic import result_of


def test_a_stored_result_that_matches_has_no_differences(saved):
    assert differences(saved, META) == []
    assert differences(saved, {}) == []
    assert differences(saved, {"settings": {"seed": 1}}) == []


def test_differences_say_what_was_stored_and_what_is_asked(saved):
    wanted = {"revision": "def", "dtype": torch.bfloat16, "settings": {"mode": "all", "seed": 1}, "n_examples": 10}
    assert differences(saved, wanted) == [
        "revision: stored abc, asked def",
        "dtype: stored nothing, asked bfloat16",
        "settings.mode: stored future, asked all",
    ]


def test_a_result_of_a_tighter_tolerance_is_the_one_asked_for_and_one_of_a_looser_is_not(saved):
    path = saved.with_name("igrads_igrads_3exps.pt")
    meta = {"settings": {"quadrature": "gauss", "tolerance": 1e-3}}
    save_artifact(path, result_of("integrated_gradients", 8), meta)
    assert differences(path, {"settings": {"tolerance": 0.01}}) == []
    assert differences(path, {"settings": {"tolerance": 1e-4}}) == ["settings.tolerance: stored 0.001, asked 0.0001"]
    assert differences(path, {"settings": {"quadrature": "riemann"}})


def test_nothing_stored_is_not_the_same_as_none_asked(saved):
    assert differences(saved, {"quantization": None}) == ["quantization: stored nothing, asked None"]


def test_a_missing_or_unreadable_file_differs_by_one_reason(saved):
    saved.write_bytes(b"")
    assert ["unreadable-1" in reason for reason in differences(saved, META)] == [True]
    assert ["no artifact for gsm8k × toy-8l" in reason for reason in differences(saved, META)] == [True]


def test_a_prompts_hash_depends_on_every_character_order_and_boundary():
    prompts = ["a b", "c"]
    others = [["a b", "c "], ["c", "a b"], ["a b" + "c"], ["a", " bc"], ["a b"], ["a b", "c", ""], []]
    hashes = [prompts_hash(prompts), *map(prompts_hash, others)]
    assert len(set(hashes)) == len(hashes)
    assert prompts_hash(iter(prompts)) == prompts_hash(tuple(prompts)) == prompts_hash(prompts)
    assert prompts_hash(["é中\udc80"]) and re.fullmatch("[0-9a-f]{16}", prompts_hash(prompts))


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_result_that_is_not_finite_is_none_and_is_said_without_torch_too(saved, kind, value):
    stored = torch.load(saved, weights_only=True)
    stored["res_overlaps"] = stored["res_overlaps"].to(kind)
    torch.save(stored, saved)
    assert read_meta(saved)[0]["revision"] == "abc" and differences(saved, META) == []
    stored["res_overlaps"][3] = value
    torch.save(stored, saved)
    assert read_meta(saved) == ({}, "it holds values that are not finite")
    assert differences(saved, META) == [f"res_overlaps is {value} at index [3]"]


HERE = {"remote": False, "runs": {"dtype": "float32", "quantized": False, "attention": "sdpa", "torch": "2.13.0"}}


@pytest.mark.parametrize(
    "there, said",
    [
        (HERE["runs"], ""),
        (HERE["runs"] | {"dtype": "bfloat16"}, "dtype bfloat16 (here float32)"),
        (
            HERE["runs"] | {"quantized": True, "attention": "eager"},
            "quantized True (here False), attention eager (here",
        ),
        ({"dtype": "float32", "quantized": False}, ""),  # what is not known differs from nothing
    ],
)
def test_a_table_of_local_and_remote_results_says_what_ran_otherwise(there, said):
    metas = [HERE, {}, HERE | {"remote": True, "runs": there}]
    assert ran_otherwise(metas).startswith(said) and bool(ran_otherwise(metas)) == bool(said)
    assert ran_otherwise([HERE, HERE | {"runs": there}]) == ""  # a table of one place is the user's own


def test_reading_a_study_of_both_places_warns_once_of_what_ran_otherwise(tmp_path):
    there = {"remote": "http://there", "runs": HERE["runs"] | {"dtype": "bfloat16"}}
    for model, meta in (("Here", HERE), ("There", there)):
        result = result_of("logit_lens", 4)
        save_artifact(tmp_path / "gsm8k" / model / "logitlens_10exps.pt", result, meta)
    study = Study(tmp_path)
    with pytest.warns(UserWarning, match="ran with dtype bfloat16 .here float32. there"):
        study.of("logit_lens")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        study.of("logit_lens")
