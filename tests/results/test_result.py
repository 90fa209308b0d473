"""What a probe returns is a dict that answers, and outside this process nothing but a dict."""

import copy
import pickle
import pickletools
import re
import warnings
import zipfile

import pytest
import torch
from torch import nn

import depth_lib as dl
from depth_lib.results.means import over_prompts
from depth_lib.results.origin import plain
from depth_lib.results.provenance import prompts_hash
from depth_lib.results.result import Result
from depth_lib.results.schemas import ARTIFACTS, mismatch
from depth_lib.results.study import Study
from depth_lib.run import Run
from tests.calls import EVERY, EXAMPLES, SUM, TEXTS
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


@pytest.mark.parametrize("call", CALLS)
def test_every_result_says_what_it_was_made_from_and_its_first_line_names_model_and_texts(toy, call):
    result = EVERY[call](toy)
    meta, first = result["meta"], repr(result).splitlines()[0]
    assert (meta["model"], meta["dtype"], meta["where"]) == ("toy-4l", "float32", "local cpu")
    assert meta["versions"].keys() >= {"torch", "transformers", "nnsight", "depth_lib"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", meta["date"])
    if ARTIFACTS[result.probe].reads in ("prompts", "examples"):
        texts = TEXTS if ARTIFACTS[result.probe].reads == "prompts" else EXAMPLES
        assert (meta["n_prompts"], meta["prompts_hash"]) == (len(texts), prompts_hash(texts))
        assert f" of toy-4l, {len(texts)} prompts (hash {prompts_hash(texts)[:8]}): " in first
    else:
        assert (meta["settings"]["question"], meta["settings"]["answer"]) == SUM
        assert f" of toy-4l, '{''.join(SUM)}'" in first


def test_a_setting_is_stored_as_it_was_given_and_an_array_by_its_content(toy, tmp_path):
    lens = dl.fit_lens(toy, TEXTS, "ridge")
    read, other = (dl.logit_lens(toy, iter(TEXTS), lens=lens | {"b": lens["b"] + k})["meta"] for k in (0, 1))
    assert read["n_prompts"] == 3 and read["settings"]["lens"]["kind"] == "ridge"
    assert read["settings"]["lens"]["A"] == other["settings"]["lens"]["A"]
    assert read["settings"]["lens"]["b"] != other["settings"]["lens"]["b"]
    assert plain(["a" * 995]) == ["a" * 995] and plain(["a" * 996]).startswith("1 items ")  # 999, 1000 characters
    result = dl.layer_effects(toy, TEXTS, part="mlp")
    assert result["meta"]["settings"] == {"part": "mlp"}
    assert dl.load_artifact(result.save(tmp_path))["meta"].items() >= result["meta"].items()


def test_a_saved_result_and_a_runs_of_the_same_texts_are_paired(tmp_path, toy):
    run = Run({"MODEL": "toy-4l", "DATASET": "gsm8k", "N_EXAMPLES": 3, "SOURCE": "embedded", "OUT": str(tmp_path)})
    stored, ours = run.result("logit_lens"), dl.logit_lens(toy, run.prompts)
    common = ("model", "dtype", "where", "prompts_hash", "n_prompts", "settings", "versions", "check", "runs", "bos")
    assert all(stored["meta"][name] == ours["meta"][name] for name in common)
    ours.save(tmp_path / "gsm8k" / "mine")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(Study(tmp_path)) == 2


def same(one, other):
    """Whether two tensors, two lists of tensors, or what `meta` says of both, are equal."""
    if isinstance(one, dict):
        return {**one, "probe": 0, "version": 0} == {**other, "probe": 0, "version": 0}
    pairs = zip(one, other, strict=True) if isinstance(one, list) else [(one, other)]
    return all(torch.equal(*pair) for pair in pairs)


def test_it_stays_one_when_copied_and_pickled(lens):
    for copied in (pickle.loads(pickle.dumps(lens)), copy.deepcopy(lens), copy.copy(lens), lens.copy()):
        assert type(copied) is type(lens) and copied.probe == "logit_lens" and repr(copied) == repr(lens)
        assert all(same(copied[key], lens[key]) for key in lens) and copied.depths().equals(lens.depths())
        copied["meta"] = {}
    assert lens["meta"]
    deep, shallow = copy.deepcopy(lens), copy.copy(lens)
    assert deep["res_kl_divs"] is not lens["res_kl_divs"] is shallow["res_kl_divs"]


def test_its_file_has_aplain_dict(lens, tmp_path):
    torch.save(lens, tmp_path / "lens.pt")
    lens.save(tmp_path / "saved.pt")
    one, two = (torch.load(tmp_path / name, weights_only=True) for name in ("lens.pt", "saved.pt"))
    assert all(map(torch.equal, one.pop("settling"), two.pop("settling")))
    assert one.pop("meta").items() <= two.pop("meta").items()
    assert all(torch.equal(one[key], two[key]) for key in {*one, *two}) and type(two) is dict
    for name in ("lens.pt", "saved.pt"):
        with zipfile.ZipFile(tmp_path / name) as file:
            (pickled,) = (file.read(part) for part in file.namelist() if part.endswith("data.pkl"))
        needed = {arg.split()[0] for code, arg, _ in pickletools.genops(pickled) if code.name == "GLOBAL"}
        assert needed <= {"torch", "torch._utils", "collections"}


def test_it_is_saved_under_its_artifacts_name_and_read_back_as_one(lens, tmp_path):
    path = lens.save(tmp_path / "gsm8k" / "toy-4l")
    assert path == tmp_path / "gsm8k" / "toy-4l" / "logitlens_3exps.pt"
    loaded = dl.load_artifact(path)
    assert loaded.probe == "logit_lens" and type(torch.load(path)) is dict
    assert all(same(loaded[key], lens[key]) for key in lens) and loaded["meta"]["probe"] == "logit_lens"
    tidy = dl.load_results(tmp_path)
    assert tidy.value.tolist() == lens.to_frame().value.tolist()


def test_somebodys_file_of_this_name_is_renamed_and_a_result_is_replaced(lens, tmp_path):
    for name in ("mine.pt", "mine.PT"):
        torch.save({"model": torch.ones(2)}, tmp_path / name)
        assert lens.save(tmp_path / name) == lens.save(tmp_path / name) == tmp_path / name
        assert torch.load(tmp_path / f"{name}.replaced-1")["model"].tolist() == [1, 1]
        assert torch.equal(dl.load_artifact(tmp_path / name)["res_kl_divs"], lens["res_kl_divs"])
    assert len([*tmp_path.iterdir()]) == 4


def test_somebodys_text_beside_a_result_is_renamed_and_its_own_tokens_stay(toy, tmp_path):
    (tmp_path / "logit_erasure_tokens_1exps.txt").write_text("a diary")
    for _ in range(2):
        path = dl.residual_erasure(toy, "5 + 7 = ", "12", ["5 + 7 = 12"]).save(tmp_path / "logit_erasure_1exps.pt")
    assert {file.name for file in tmp_path.iterdir()} == {
        path.name,
        "logit_erasure_tokens_1exps.txt",
        "logit_erasure_tokens_1exps.txt.replaced-1",
    }
    assert (tmp_path / "logit_erasure_tokens_1exps.txt.replaced-1").read_text() == "a diary"


def test_a_result_of_other_prompts_or_of_other_blocks_is_renamed_and_says_which_they_are(lens, toy, tmp_path):
    texts = dl.load_prompts("gsm8k", 3, source="embedded")
    shorter = dl.reorder_blocks(dl.remove_blocks(toy, 1), [2, 0, 1])
    others = dl.logit_lens(shorter, texts), dl.logit_lens(toy, texts[::-1])
    assert others[0]["meta"]["order"] == [3, 0, 2] and " of toy-4l with blocks [3, 0, 2], 3" in repr(others[0])
    assert "order" not in lens["meta"] and "blocks" not in repr(lens)
    for n, result in enumerate((lens, *others)):
        path = result.save(tmp_path)
        assert len([*tmp_path.glob(f"{path.name}*")]) == n + 1
    assert dl.load_artifact(f"{path}.replaced-1")["meta"]["prompts_hash"] == lens["meta"]["prompts_hash"]


class Changed(nn.Module):
    """A module whose output is multiplied by an attribute, and to which a vector is added."""

    def __init__(self, module, factor, vector):
        super().__init__()
        self.module, self.factor, self.vector = module, factor, torch.full((128,), vector)

    def forward(self, x):
        return self.module(x) * self.factor + self.vector.to(x.dtype)


def toy_loop(passes=1, norm_between=False, order=(), wrapped=(), scale=1.0, head=None, attention="sdpa", **how):
    """The toy loop, changed in one way or in none; its name stays."""
    llm = dl.load_model("toy-loop", **how)
    model = llm._module
    model.set_attn_implementation(attention)
    block = model.model.layers[1]
    block.mlp.down_proj.weight.data *= scale
    if head is not None:  # of 4
        block.self_attn.o_proj.weight.data[:, 32 * head : 32 * head + 32] = 0
    if wrapped:
        block.mlp = Changed(block.mlp, *wrapped)
    if passes > 1:
        model = dl.unroll(model, passes, norm_between)
    llm = dl.load_model(model, llm.tokenizer)
    return dl.reorder_blocks(llm, order) if order else llm


@pytest.mark.slow
def test_save_replaces_a_result_of_the_same_numbers_and_keeps_those_of_a_model_changed_in_any_way(tmp_path):
    changes = [{}, {"dtype": "float64"}, {"order": [1, 0]}, {"attention": "eager"}, {"scale": 1.001}]
    changes += [{"passes": 2}, {"passes": 3}, {"passes": 2, "norm_between": True}, {"head": 1}, {"head": 3}]
    changes += [{"wrapped": of_mlp} for of_mlp in ((2.0, 0.0), (3.0, 0.0), (1.0, 0.1), (1.0, 0.2))]
    paths = set()
    for n, change in enumerate(changes):
        for _ in range(2):
            lens = dl.logit_lens(toy_loop(**change), TEXTS)
            assert (lens["meta"]["model"], lens["meta"]["passes"]) == ("toy-loop", change.get("passes", 1))
            paths.add(lens.save(tmp_path))
        assert len([*tmp_path.iterdir()]) == n + 1, change
    (path,) = paths
    kept = [dl.load_artifact(f"{path}.replaced-{n}") for n in range(1, len(changes))]
    assert [len(lens["res_kl_divs"]) for lens in kept] == [2] * 5 + [4, 6, 4] + [2] * 5
    assert [lens["meta"]["passes"] for lens in kept] == [1] * 5 + [2, 3, 2] + [1] * 5


def test_a_change_that_no_hash_of_weights_sees_keeps_both_results_too(tmp_path):
    llm = dl.load_model("toy-4l")
    path = dl.logit_lens(llm, TEXTS).save(tmp_path)
    with torch.no_grad():
        llm._module.model.layers[1].mlp.up_proj.weight[0, 1] += 5  # an entry
    changed = dl.logit_lens(llm, TEXTS)
    assert changed["meta"]["model_hash"] == dl.load_artifact(path)["meta"]["model_hash"], "the case of this test"
    assert changed.save(tmp_path) == path and len([*tmp_path.iterdir()]) == 2
    for result in (changed, dl.logit_lens(llm, TEXTS[:1])):  # metas of one's own say less
        dl.save_artifact(tmp_path / "mine/logitlens_2exps.pt", result, {"model": "toy-4l"})
    assert len([*(tmp_path / "mine").iterdir()]) == 2


def test_a_result_of_one_mode_is_saved_under_the_mode_and_read(toy, tmp_path):
    texts = ["5 + 7 = 12 and 3 + 4 = 7"]
    calls = {mode: [dl.local_effects(toy, texts, mode)] for mode in ("future", "all")}
    calls |= {mode: [dl.layer_effects(toy, texts, mode)] for mode in ("all", "remove")}
    calls["all"] += [dl.local_effects(toy, texts, "all"), dl.layer_effects(toy, texts, "all", part="mlp")]
    for mode, results in calls.items():
        for result in results:
            path = result.save(tmp_path)
            assert f"mode={mode}.pt" in path.name
            assert dl.load_artifact(path).keys() == result.keys()
    assert dl.layer_effects(toy, texts).save(tmp_path).name == "layer_effects_1exps.pt"


def test_an_array_in_place_of_a_tensor_is_a_column_too(lens):
    changed = lens | {"res_kl_divs": lens["res_kl_divs"].numpy()}
    assert changed.to_frame().equals(lens.to_frame())


def test_a_call_that_was_changed_is_saved_beside_the_default_one_as_a_run_names_it(tmp_path):
    calls = [{}, {"at": "last"}, {"generate": 3}, {"answers": ["1", "2"]}, {"answers": ["1", "3"]}, {"budget": 9}]
    calls += [{"lens": {"A": "float32 [4, 8, 8] 0123"}}, {"lens": {"A": "float32 [4, 8, 8] 4567"}}]
    values = result_of("logit_lens", 4)
    saved = [
        Result("logit_lens", values | {"meta": {"settings": call}}).save(tmp_path / "gsm8k" / "toy-4l")
        for call in calls
    ]
    names = [path.name for path in saved]
    assert len({*names}) == len(calls) - 1 and names[0] == names[5] and names[1] == names[0][:-3] + "@at=last.pt"
    run = Run({"MODEL": "toy-4l", "N_EXAMPLES": len(values["n_tokens"]), "OUT": str(tmp_path)})
    assert [run.path("logit_lens", **call).name for call in calls[:5]] == names[:5]
    assert {*Study(tmp_path)} == {
        ("gsm8k", "toy-4l", "logit_lens" + name.partition(".pt")[0][len(names[0]) - 3 :]) for name in names
    }
    assert dl.load_artifact(saved[1]).save(tmp_path / "again").name == names[1]


def test_the_name_of_a_result_about_another_question_has_it_and_that_of_a_joined_mode_has_none(tmp_path):
    question = {"question": "1 + 2 = ", "answer": "3"}
    erasure = Result("residual_erasure", result_of("residual_erasure", 4) | {"meta": {"settings": question}})
    run = Run({"MODEL": "toy-4l", "QUESTION": "1 + 2 = ", "ANSWER": "3", "N_EXAMPLES": 1, "OUT": str(tmp_path)})
    assert erasure.save(tmp_path).name == run.path("residual_erasure").name != "logit_erasure_1exps.pt"
    for probe, settings in (("layer_effects", {"mode": "all"}), ("mlp_effects", {"part": "mlp"})):
        result = Result(probe, result_of(probe, 4) | {"meta": {"settings": settings}})
        assert "@" not in result.save(tmp_path).name


def test_it_tells_its_depths_and_draws_the_kind_that_is_asked_for(lens):
    lens = type(lens)("logit_lens", result_of("logit_lens", 8))
    assert lens.depths().equals(dl.effective_depths(lens))
    assert lens.plot("lens_overlap").get_ylim()[1] < 2 < lens.plot().get_ylim()[1]
    with pytest.raises(ValueError, match='needs a result of relative_contribution with "rc_att"'):
        lens.plot("relative_contribution")


def edited(lens):
    """The same result edited in three ways, and what is then said."""
    without = copy.copy(lens)
    del without["res_kl_divs"]
    yield without, "it lacks res_kl_divs"
    yield lens | {"res_kl_divs": lens["res_kl_divs"][:2]}, r"res_kl_divs_sums has shape \[3, 4\], not \[3, 2\]"
    yield lens | {"res_kl_divs": lens["res_kl_divs"].tolist()}, "res_kl_divs is a list, not a tensor"
    yield lens | {"n_tokens": lens["n_tokens"][:2]}, r"res_kl_divs_sums has shape|n_tokens has shape \[2\]"


def test_one_that_was_edited_is_refused_in_one_line_that_names_the_key(lens, tmp_path):
    for result, said in edited(lens):
        calls = (
            result.depths,
            result.plot,
            result.to_frame,
            lambda result=result: dl.plot("lens_overlap", {"a": lens, "b": result}),
            lambda result=result: dl.compare({"a": lens, "b": result}),
        )
        for call in calls:
            with pytest.raises(
                ValueError, match=f"^this logit_lens result is not valid: .*{said}.*; run the probe again$"
            ):
                call()
        if "res_kl_divs" in result and torch.is_tensor(result["res_kl_divs"]):  # a plain dict may have lists
            with pytest.raises(ValueError, match=f"^this logit_lens result is not valid: .*{said}"):
                dl.effective_depths({**result})
        for name in ("mine.pt", "folder"):
            with pytest.raises(dl.ArtifactError, match=f"was not written: .*{said}"):
                result.save(tmp_path / name)


def test_one_mode_is_saved_under_its_own_name_and_is_no_file_of_a_run(tmp_path):
    for mode in ("all", "remove"):
        result = Result("layer_effects", _of_mode(mode))
        for path in (result.save(tmp_path / "x.pt"), result.save(tmp_path)):
            read = dl.load_artifact(path)
            assert torch.equal(read[f"max_{mode}_layer"], result[f"max_{mode}_layer"]) and len(read.to_frame())
        assert path.name == f"layer_effects_10exps@mode={mode}.pt"
        with pytest.raises(dl.ArtifactError, match="was not written: it lacks max_future_layer and max_future_out"):
            result.save(tmp_path / "layer_effects_10exps.pt")


def _of_mode(mode):
    whole = result_of("layer_effects", 4)
    return {key.replace("all", mode): value for key, value in whole.items() if "all" in key}


def test_a_file_of_ones_own_name_is_read_by_the_probe_that_it_names(lens, tmp_path):
    read = dl.load_artifact(lens.save(tmp_path / "x.pt"))
    assert read.probe == "logit_lens" and torch.equal(read["res_kl_divs"], lens["res_kl_divs"])
    with pytest.raises(dl.ArtifactError, match="no such file: .*nowhere.pt$"):
        dl.load_artifact(tmp_path / "nowhere.pt")
    torch.save({"a": torch.ones(1)}, tmp_path / "other.pt")
    torch.save(torch.ones(1), tmp_path / "logitlens_1exps.pt")  # in no run's folder, so no run is named
    (tmp_path / "cut.pt").write_bytes((tmp_path / "x.pt").read_bytes()[:900])
    for name in ("other", "cut", "logitlens_1exps"):
        with pytest.raises(
            dl.ArtifactError,
            match=f"{name}.pt is not a depth_lib artifact, or is damaged: [^;]*; recompute it, or replace it",
        ):
            dl.load_artifact(tmp_path / f"{name}.pt")


def test_a_result_that_was_read_keeps_what_it_was_made_from_when_it_is_saved_again(lens, tmp_path):
    meta = {"model": "toy-4l", "version": 0, "prompts_hash": "abc"}
    first = dl.load_artifact(dl.save_artifact(tmp_path / "logitlens_3exps.pt", lens, meta))
    again = dl.load_artifact(first.save(tmp_path / "copy" / "logitlens_3exps.pt"))
    assert again["meta"] == first["meta"] and again["meta"].items() >= meta.items()


def test_five_tokens_are_five():
    result = result_of("answer_lens", 4)
    assert mismatch("answer_lens", result) is None
    assert "answer_top has shape" in mismatch("answer_lens", result | {"answer_top": result["answer_top"][..., :3]})


def test_what_a_run_asks_of_each_probe_beside_a_question_and_the_prompts():
    modes, parts = {"modes": ["future", "all"]}, ({"part": "attention"}, {"part": "mlp"})
    gradients, removal = {"quadrature": 0.01}, ("block_removal", "prompts")
    expected = {
        "relative_contribution": ("", "prompts", {}),
        "layer_effects": ("", "prompts", modes),
        "logit_lens": ("", "prompts", {}),
        "residual_erasure": ("", "baseline", {}),
        "integrated_gradients": ("", "", gradients),
        "answer_lens": ("", "", {}),
        "attention_effects": ("layer_effects", "prompts", modes | parts[0]),
        "mlp_effects": ("layer_effects", "prompts", modes | parts[1]),
        "attention_gradients": ("integrated_gradients", "", gradients | {"at": "attention"}),
        "mlp_gradients": ("integrated_gradients", "", gradients | {"at": "mlp"}),
        "local_effects": ("", "prompts", modes),
        "block_removal": ("", "prompts", {"sizes": "refined"}),
        "block_orders": ("", "prompts", {"orders": "repeats swaps reversals removals"}),
        "attention_removal": (*removal, parts[0]),
        "mlp_removal": (*removal, parts[1]),
        "future_erasure": ("", "baseline", {}),
        "direct_effects": ("", "", {}),
        "block_accuracy": ("", "choices", {}),
        "depth_by_difficulty": ("", "examples", {}),
    }
    pair = {"question", "answer"}
    for probe, (function, reads, settings) in expected.items():
        row = ARTIFACTS[probe]
        assert (row.function, row.reads) == (function, reads)
        assert {name: value for name, value in row.settings.items() if name not in pair} == settings
        assert (row.settings.keys() >= pair) == (reads in ("", "baseline"))
        assert row.version == 1, "another one has the results of all users computed again"


def test_values_over_prompts_are_maxima_and_means_and_a_floor_stays_one_number_per_prompt():
    maxima, means, floor = torch.tensor([[1.0, 3], [2, 1]]), torch.tensor([[1, torch.nan], [3, 2]]), torch.ones(2)
    found = over_prompts({"max_a": maxima, "b": means, "max_a_rounding_floor": floor})
    expected = {"max_a": [2, 3], "b": [2, 2], "max_a_by_prompt": maxima, "b_by_prompt": means}
    assert found.keys() == expected.keys() | {"max_a_rounding_floor"} and found["max_a_rounding_floor"] is floor
    for key, value in expected.items():
        torch.testing.assert_close(found[key], torch.as_tensor(value, dtype=torch.float32), equal_nan=True)
