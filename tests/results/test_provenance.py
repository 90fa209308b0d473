"""Whether a stored result is the one that is wanted, decided in one place, and what differs where it is not."""

import json
import re
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from depth_lib.results.artifacts import load_artifact, save_artifact
from depth_lib.results.asked import RunSpec
from depth_lib.results.provenance import fingerprint, judge, prompts_hash
from depth_lib.results.schemas import SCHEMAS
from depth_lib.results.study import Study
from tests.results.conftest import META
from tests.synthetic import result_of, save


def why_stale(path, wanted):
    return judge(path, wanted).reasons


def test_a_stored_result_that_matches_is_done_and_one_of_a_changed_call_is_not(saved):
    assert judge(saved, META).word == judge(saved, {}).word == "done"
    state = judge(saved, {"settings": {"seed": 1}})
    assert (state.word, state.reasons) == ("stale", ["settings.mode: stored future, asked nothing"])
    assert state.meta["revision"] == "abc" and str(state) == "stale: settings.mode: stored future, asked nothing"


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
    asked = {"quadrature": "gauss", "tolerance": 0.01}
    assert why_stale(path, {"settings": asked}) == []
    (reason,) = why_stale(path, {"settings": asked | {"tolerance": 1e-4}})
    assert reason == "settings.tolerance: stored 0.001, asked 0.0001"
    assert why_stale(path, {"settings": asked | {"quadrature": "riemann"}})


def test_a_probe_that_was_mended_makes_older_results_stale(saved, monkeypatch):
    monkeypatch.setitem(SCHEMAS, "logit_lens", replace(SCHEMAS["logit_lens"], version=2))
    assert why_stale(saved, META) == ["version: by version 1 of the probe, which now has 2"]
    save_artifact(saved, result_of("logit_lens", 8), META)
    assert why_stale(saved, META) == [] and load_artifact(saved)["meta"]["version"] == 2


def test_results_of_the_first_schema_are_read(saved):
    torch.save(torch.load(saved, weights_only=True), saved)  # without meta.json
    assert why_stale(saved, META) == []


def test_a_result_with_a_changed_bit_is_stale_and_so_is_one_that_is_not_there(saved):
    content = bytearray(saved.read_bytes())
    content[content.index(result_of("logit_lens", 8)["res_kl_divs"].numpy().tobytes())] ^= 1
    saved.write_bytes(content)
    (reason,) = why_stale(saved, META)
    assert reason == "it is truncated or damaged"
    saved.unlink()
    assert judge(saved, META).word == "missing" and not saved.exists()


def test_a_prompts_hash_depends_on_every_character_order_and_boundary():
    prompts = ["a b", "c"]
    others = [["a b", "c "], ["c", "a b"], ["a b" + "c"], ["a", " bc"], ["a b"], ["a b", "c", ""], []]
    hashes = [prompts_hash(prompts), *map(prompts_hash, others)]
    assert len(set(hashes)) == len(hashes)
    assert prompts_hash(iter(prompts)) == prompts_hash(tuple(prompts)) == prompts_hash(prompts)
    assert prompts_hash(["é中\udc80"]) and re.fullmatch("[0-9a-f]{16}", prompts_hash(prompts))


def test_the_fingerprint_of_a_checkpoint_sees_an_edit_of_one_norm_between_large_tensors(tmp_path):
    path, norm = tmp_path / "model.safetensors", torch.ones(64)
    # 129 MiB, so that 256 evenly spread pieces of 256 KiB miss the norm and the last byte
    save_file({"a": torch.zeros(65 * 2**18), "b.norm": norm, "c": torch.zeros(64 * 2**18)}, path)
    before, content = fingerprint(tmp_path), path.read_bytes()
    with open(path, "r+b", buffering=0) as file:
        for edited in (content.index(norm.numpy().tobytes()) + 100, len(content) - 1):
            for byte, same in ((content[edited] ^ 1, False), (content[edited], True)):
                file.seek(edited)
                file.write(bytes([byte]))
                assert (fingerprint(tmp_path) == before) == same
    (tmp_path / "config.json").write_text("{}")
    assert fingerprint(tmp_path) != before


def test_a_study_says_which_results_are_of_different_prompts_or_weights_or_of_the_same_prompts(tmp_path):
    for dataset, model, prompts, source in (
        ("gsm8k", "toy-4l", "a", "embedded"),
        ("gsm8k", "toy-8l", "b", "hub"),
        ("mine", "toy-8l", "b", "mine.txt"),
        ("other", "toy-8l", "c", "embedded"),
    ):
        meta = {"n_prompts": 10, "prompts_hash": prompts, "source": source, "commit": f"commit-{prompts}"}
        save(tmp_path, model, "logit_lens", 4, dataset, **meta)
    of_gsm8k = {"prompts_hash": "d", "commit": "commit-c"}  # an erasure's baseline is no prompt of its dataset
    save(tmp_path, "toy-8l", "residual_erasure", 4, "other", **of_gsm8k)
    with pytest.warns(UserWarning) as warned:
        study = Study(tmp_path)
    assert [str(warning.message) for warning in warned] == study.problems
    different, commits, same = study.problems
    assert different.startswith("gsm8k has results of different prompts, which are not comparable: ")
    assert different.endswith("10 from embedded, hash a (toy-4l), 10 from hub, hash b (toy-8l)")
    assert commits == "toy-8l has results of different weights: commit-b (gsm8k, mine), commit-c (other)"
    assert same == "gsm8k and mine have the same prompts: their results do not differ by task"


def test_a_study_names_the_results_of_an_earlier_version_of_a_probe(tmp_path, monkeypatch):
    save(tmp_path, "toy", "logit_lens")
    monkeypatch.setitem(SCHEMAS, "logit_lens", replace(SCHEMAS["logit_lens"], version=2))
    said = "gsm8k × toy: logit_lens is stale: version: by version 1 of the probe, which now has 2"
    with pytest.warns(UserWarning, match=said):
        assert Study(tmp_path).problems == [said]


def test_a_study_names_the_results_that_are_not_those_its_run_last_asked_for(tmp_path):
    asked = RunSpec({"MODEL": "toy-4l", "DATASET": "addition", "N_EXAMPLES": 2, "OUT": str(tmp_path)})
    for probe in ("logit_lens", "layer_effects"):
        save_artifact(asked.path(probe), result_of(probe, 4), asked.provenance(probe))
    asked.write_parameters()
    assert Study(tmp_path).problems == []
    changed = asked.path("layer_effects", part="mlp")
    save_artifact(changed, result_of("layer_effects", 4), asked.provenance("layer_effects", part="mlp"))
    other = asked.provenance("logit_lens") | {"dtype": "float64"}
    save_artifact(asked.path("logit_lens"), result_of("logit_lens", 4), other)
    said = "addition × toy-4l: logit_lens is stale: dtype: stored float64, asked float32"
    with pytest.warns(UserWarning, match=said):
        assert Study(tmp_path).problems == [said]
    (asked.folder / "probe.json").write_text(json.dumps(asked.cell() | {"MODEL_ID": str(tmp_path / "gone")}))
    assert Study(tmp_path).problems == [], "of a checkpoint that is gone nothing is known"
    (asked.folder / "probe.json").write_text("{")
    assert Study(tmp_path).problems == [], "what was asked is not known"


def test_a_name_given_twice_to_a_study_is_there_once(tmp_path):
    save(tmp_path, "toy", "logit_lens")
    study = Study(tmp_path, ["toy", "toy"], ["gsm8k", "gsm8k"])
    assert (study.models, study.datasets, len(study)) == (["toy"], ["gsm8k"], 1)


def test_what_is_missing_of_prompts_of_ones_own_is_computed_by_a_command_with_their_file(tmp_path):
    save(tmp_path, "toy-8l", "logit_lens", 4, "mine", source="mine.jsonl", rows_of="gsm8k")
    (line,) = Study(tmp_path).missing()
    assert line.startswith("no artifact for mine × toy-8l (relative_contribution); run: ")
    assert line.endswith(f"depth-lib sweep --models=toy-8l --datasets=gsm8k --source=mine.jsonl --out={tmp_path}")
