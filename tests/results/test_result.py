"""What a probe returns is a dict that answers, and outside this process nothing but a dict."""

import copy
import pickle
import subprocess
import sys

import pytest
import torch

import depth_lib as dl
from depth_lib.results.schemas import ARTIFACTS, mismatch
from tests.calls import EVERY
from tests.synthetic import result_of

CALLS = {"layer_effects, future, layer": "layer_effects", "layer_effects, all, mlp": "mlp_effects"}
CALLS |= {"gradients": "integrated_gradients", "gradients, mlp": "mlp_gradients", "block_removal, mlp": "mlp_removal"}
CALLS |= {name: name for name in ("relative_contribution", "logit_lens", "residual_erasure", "future_erasure")}
CALLS |= {"local_effects, future": "local_effects", "block_removal": "block_removal"}
CALLS |= {"depth_by_difficulty": "depth_by_difficulty"}


@pytest.fixture(scope="module")
def lens(toy):
    return EVERY["logit_lens"](toy)


@pytest.mark.parametrize("call", CALLS)
def test_every_probe_returns_one_that_knows_its_name_and_has_four_lines(toy, call):
    result = EVERY[call](toy)
    assert isinstance(result, dict) and result.probe == CALLS[call] and result.probe in ARTIFACTS
    name, keys, extent, methods = repr(result).splitlines()
    kinds = "|".join(f"'{kind}'" for kind in dl.kinds_of(result.probe, result))
    depths = "  .depths()" if result.probe in ("logit_lens", "relative_contribution") else ""
    assert name.startswith(result.probe) and methods == f".plot({kinds}){depths}  .to_frame()  .save(path)"
    first = next(iter(result))
    assert (
        keys.startswith(f"{first} {[*result[first].shape]}")
        and " from " in extent
        and max(map(len, repr(result).splitlines())) <= 120
    )
    assert len(result.to_frame()) > 0 and len(result.plot().get_figure().axes) > 0


def test_it_is_equal_to_the_dict_that_it_is_and_stays_one_when_joined(lens):
    plain = {**lens}
    assert type(plain) is dict and list(plain) == list(lens)
    assert lens == plain and plain == lens and {"lens": lens}["lens"]["res_kl_divs"] is plain["res_kl_divs"]
    joined = lens | {"more": 1}
    assert joined.probe == "logit_lens" and joined == plain | {"more": 1} and "more" not in lens


def same(one, other):
    """Whether two tensors, or two lists of tensors, are equal."""
    pairs = zip(one, other, strict=True) if isinstance(one, list) else [(one, other)]
    return all(torch.equal(*pair) for pair in pairs)


def test_it_is_pickled_copied_and_stored_without_its_class(lens, tmp_path):
    for stored in (pickle.loads(pickle.dumps(lens)), copy.deepcopy(lens)):
        assert isinstance(stored, dict) and "Result" not in type(stored).__name__
        assert all(same(stored[key], lens[key]) for key in lens)
    torch.save(lens, tmp_path / "lens.pt")
    lens.save(tmp_path / "saved.pt")
    code = (
        "import sys, torch\n"
        "one, two = (torch.load(name, weights_only=True) for name in sys.argv[1:])\n"
        "assert all(map(torch.equal, one.pop('settling'), two.pop('settling')))\n"
        "assert all(torch.equal(one[key], two[key]) for key in {*one, *two}) and type(two) is dict\n"
        "assert 'depth_lib' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "lens.pt", tmp_path / "saved.pt"], check=True)


def test_it_is_saved_under_its_artifacts_name_and_read_back_as_one(lens, tmp_path):
    path = lens.save(tmp_path / "gsm8k" / "toy-4l")
    assert path == tmp_path / "gsm8k" / "toy-4l" / "logitlens_3exps.pt"
    loaded = dl.load_artifact(path)
    assert loaded.probe == "logit_lens" and type(torch.load(path)) is dict
    assert all(same(loaded[key], lens[key]) for key in lens) and loaded["meta"]["probe"] == "logit_lens"
    tidy = dl.load_results(tmp_path)
    assert tidy.value.tolist() == lens.to_frame().value.tolist()


def test_it_tells_its_depths_and_draws_the_kind_that_is_asked_for(lens):
    lens = type(lens)("logit_lens", result_of("logit_lens", 8))
    assert lens.depths().equals(dl.effective_depths(lens))
    assert lens.plot("lens_overlap").get_ylim()[1] < 2 < lens.plot().get_ylim()[1]
    with pytest.raises(ValueError, match="needs a relative_contribution result with rc_att"):
        lens.plot("relative_contribution")
    with pytest.raises(ValueError, match="no figure is drawn of a logit_lens with other"):
        type(lens)("logit_lens", {"other": torch.ones(2)}).plot()


def test_a_result_that_was_read_keeps_what_it_was_made_from_when_it_is_saved_again(lens, tmp_path):
    meta = {"model": "toy-4l", "version": 0, "prompts_hash": "abc"}
    first = dl.load_artifact(dl.save_artifact(tmp_path / "logitlens_3exps.pt", lens, meta))
    again = dl.load_artifact(first.save(tmp_path / "copy" / "logitlens_3exps.pt"))
    assert again["meta"] == first["meta"] and again["meta"].items() >= meta.items()


def test_five_tokens_are_five():
    result = result_of("answer_lens", 4)
    assert mismatch("answer_lens", result) is None
    assert "answer_top has shape" in mismatch("answer_lens", result | {"answer_top": result["answer_top"][..., :3]})
