"""Whether a stored result is the one that is wanted, decided in one place, and what differs where it is not."""

import re
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from depth_lib.results import provenance
from depth_lib.results.artifacts import load_artifact, save_artifact
from depth_lib.results.provenance import fingerprint, prompts_hash, why_stale
from depth_lib.results.schemas import SCHEMAS, artifact_path
from depth_lib.results.study import Study
from tests.results.conftest import META
from tests.synthetic import result_of


def test_a_stored_result_that_matches_is_not_stale(saved):
    assert why_stale(saved, {"examples_hash": "not stored by earlier versions"}) == []
    assert why_stale(saved, META) == why_stale(saved, {}) == why_stale(saved, {"settings": {"seed": 1}}) == []


def test_the_reasons_say_what_was_stored_and_what_is_asked(saved):
    wanted = {"revision": "def", "dtype": "bfloat16", "settings": {"mode": "all", "seed": 1}, "n_examples": 10}
    assert why_stale(saved, wanted) == [
        "revision: stored abc, asked def",
        "dtype: stored nothing, asked bfloat16",
        "settings.mode: stored future, asked all",
    ]
    assert why_stale(saved, {"quantization": None}) == ["quantization: stored nothing, asked None"]


def test_a_result_of_a_tighter_tolerance_is_the_one_asked_for_and_one_of_a_looser_is_not(saved):
    path = saved.with_name("igrads_igrads_3exps.pt")
    save_artifact(path, result_of("integrated_gradients", 8), {"settings": {"quadrature": "gauss", "tolerance": 1e-3}})
    assert why_stale(path, {"settings": {"tolerance": 0.01}}) == []
    assert why_stale(path, {"settings": {"tolerance": 1e-4}}) == ["settings.tolerance: stored 0.001, asked 0.0001"]
    assert why_stale(path, {"settings": {"quadrature": "riemann"}})


def test_a_probe_that_was_mended_makes_older_results_stale(saved, monkeypatch):
    """Files of before there were versions are of version 1."""
    stored = torch.load(saved, weights_only=True)
    assert stored["meta"].pop("version") == 1
    torch.save(stored, saved)
    assert why_stale(saved, META) == []
    monkeypatch.setitem(SCHEMAS, "logit_lens", replace(SCHEMAS["logit_lens"], version=2))
    assert why_stale(saved, META) == ["version: stored 1, asked 2"]
    save_artifact(saved, result_of("logit_lens", 8), META)
    assert why_stale(saved, META) == [] and load_artifact(saved)["meta"]["version"] == 2


def test_the_number_of_prompts_is_compared_where_neither_the_name_nor_the_prompts_say_it(tmp_path):
    path = artifact_path(tmp_path, "gsm8k", "toy", "relative_contribution", 20)
    result = result_of("relative_contribution", 4)
    save_artifact(path, result, {"n_prompts": 20, "n_examples": 20})
    assert why_stale(path, {"n_examples": 10}) == ["n_examples: stored 20, asked 10"]
    save_artifact(path, result, {"n_prompts": 20})  # as earlier versions did
    assert why_stale(path, {"n_examples": 20}) == []
    assert why_stale(path, {"n_examples": 10}) == ["n_examples: stored 20, asked 10"]
    # with the prompts known, their number decides: a dataset may have fewer than asked for
    assert why_stale(path, {"n_examples": 30, "n_prompts": 20}) == []


def test_a_result_with_a_changed_bit_is_stale_and_so_is_one_that_is_not_there(saved):
    content = bytearray(saved.read_bytes())
    content[content.index(result_of("logit_lens", 8)["res_kl_divs"].numpy().tobytes())] ^= 1
    saved.write_bytes(content)
    assert why_stale(saved, META) == ["it is truncated or damaged"]
    saved.unlink()
    assert why_stale(saved, META) == [provenance.NONE_YET] and not saved.exists()


def test_a_prompts_hash_depends_on_every_character_order_and_boundary():
    prompts = ["a b", "c"]
    others = [["a b", "c "], ["c", "a b"], ["a b" + "c"], ["a", " bc"], ["a b"], ["a b", "c", ""], []]
    hashes = [prompts_hash(prompts), *map(prompts_hash, others)]
    assert len(set(hashes)) == len(hashes)
    assert prompts_hash(iter(prompts)) == prompts_hash(tuple(prompts)) == prompts_hash(prompts)
    assert prompts_hash(["é中\udc80"]) and re.fullmatch("[0-9a-f]{16}", prompts_hash(prompts))


def test_the_fingerprint_of_a_checkpoint_sees_an_edit_of_one_norm_between_large_tensors(tmp_path):
    path = tmp_path / "model.safetensors"
    large, norm = torch.zeros(24, 2**20), torch.ones(64)
    save_file({"a": large, "b.norm": norm, "c": large[1:].clone()}, path)  # far from 256 evenly spread pieces of 256 kB
    assert path.stat().st_size > 64 * 2**20
    before = fingerprint(tmp_path)
    assert fingerprint(tmp_path) == before
    content = path.read_bytes()
    with open(path, "r+b", buffering=0) as file:
        for edited in (content.index(norm.numpy().tobytes()) + 100, len(content) - 1):
            for byte, same in ((content[edited] ^ 1, False), (content[edited], True)):
                file.seek(edited)
                file.write(bytes([byte]))
                assert (fingerprint(tmp_path) == before) == same
    (tmp_path / "config.json").write_text("{}")
    assert fingerprint(tmp_path) != before


def write_lens(out, model, meta, n=10):
    save_artifact(artifact_path(out, "gsm8k", model, "logit_lens", n), result_of("logit_lens", 4, seed=n), meta)


@pytest.mark.parametrize(
    "meta",
    [{"n_prompts": 10}, {"n_examples": 10}, {"n_examples": 10, "n_prompts": 7}, {"n_examples": 20, "n_prompts": 10}],
)
def test_a_study_takes_the_number_of_prompts_that_the_contribution_has_else_the_largest(tmp_path, meta):
    """Earlier versions stored one of these, and named a result by N_EXAMPLES where a dataset has fewer prompts."""
    for n in (10, 20):
        write_lens(tmp_path, "lowered", {"n_prompts": n}, n)
        write_lens(tmp_path, "alone", {"n_prompts": n}, n)
    contribution = artifact_path(tmp_path, "gsm8k", "lowered", "relative_contribution", 10)
    save_artifact(contribution, result_of("relative_contribution", 4), meta)
    with pytest.warns(UserWarning, match="reading .*logitlens_[12]0exps.pt, not logitlens_[12]0exps.pt beside it"):
        files = Study(tmp_path).paths
    assert files["gsm8k", "lowered", "logit_lens"].name == "logitlens_10exps.pt"
    assert files["gsm8k", "alone", "logit_lens"].name == "logitlens_20exps.pt"


def test_a_table_of_metrics_on_other_prompts_says_so(tmp_path):
    from depth_lib.effective_depth.tables import depths

    write_lens(tmp_path, "toy", {"n_prompts": 20, "prompts_hash": "b"}, 20)
    contribution = artifact_path(tmp_path, "gsm8k", "toy", "relative_contribution", 10)
    save_artifact(contribution, result_of("relative_contribution", 4), {"n_prompts": 10, "prompts_hash": "a"})
    with pytest.warns(UserWarning, match="gsm8k × toy mixes results of different prompts; run the sweep again"):
        depths(Study(tmp_path))
