"""A run reads what is there and computes what is not, and no result says of itself what is not so."""

import json
import re
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import depth_lib as dl
from depth_lib.data.datasets import dataset_named
from depth_lib.depths import untrained
from depth_lib.effective_depth.tables import CONTROL, depths
from depth_lib.embedded import TOYS, toy_path
from depth_lib.files import holder
from depth_lib.lenses.files import Lens
from depth_lib.params import ParamsError
from depth_lib.results.provenance import prompts_hash
from depth_lib.results.schemas import ARTIFACTS, RANDOM, MissingArtifact, label_of
from depth_lib.results.study import Study
from depth_lib.run import OtherSettings, Run, resolved
from depth_lib.sweep.cli import main
from tests.families import save_family
from tests.tiny_tokenizers import char_tokenizer


@pytest.fixture
def cell(tmp_path):
    given = {"MODEL": "toy-4l", "DATASET": "mquake", "N_EXAMPLES": 3, "PROBES": ["logit_lens", "layer_effects"]}
    return given | {"OUT": str(tmp_path / "out")}


def test_what_a_result_says_of_itself_is_what_was_measured(cell):
    run = Run(cell)
    lens = run.result("logit_lens")
    assert (lens["meta"]["n_prompts"], lens["meta"]["settings"]) == (len(lens["n_tokens"]), {}) == (3, {})
    with pytest.raises(TypeError):
        run.result("logit_lens", lambda llm: dl.logit_lens(llm, run.prompts[:2]))  # a call of one's own
    for name in ("prompts", "remote"):
        with pytest.raises(ParamsError, match=f"^{name} is set by the run; for a different one, call dl.logit_lens"):
            run.result("logit_lens", **{name: run.prompts[:2]})
    with pytest.raises(ParamsError, match='unknown logit_lens argument "lense"; did you mean "lens"?'):
        run.result("logit_lens", lense=1)
    run.prompts = run.prompts[:2]
    assert run.lacking == ["logit_lens", "layer_effects"]
    with pytest.raises(OtherSettings, match="has results with different settings .different prompts.[.] Set REPLACE"):
        run.result("logit_lens")


def test_other_settings_are_one_line_and_replace_moves_the_whole_folder(cell, capsys):
    first = Run(cell)
    first.result("logit_lens")
    first.result("layer_effects", part="mlp")
    more = Run(cell | {"N_EXAMPLES": 4})
    with pytest.raises(OtherSettings) as refused:
        more.begin()
    (line,) = refused.value._render_traceback_()
    assert "\n" not in line and "(N_EXAMPLES: 3, requested 4). Set REPLACE (--replace) to move them to" in line
    assert first.is_done("logit_lens"), "nothing is touched"
    there = Run(cell)
    there.params.REMOTE = there.remote = "http://localhost:1"
    assert there.other_settings("logit_lens") == [
        "DTYPE: float32, requested the server's",
        "QUANTIZATION: none, requested the server's",
        "REMOTE: False, requested http://localhost:1",
    ]
    replacing = Run(cell | {"N_EXAMPLES": 4, "REPLACE": True, "PROBES": ["logit_lens"]})
    assert len(replacing.result("logit_lens")["n_tokens"]) == 4
    assert "they are now in " in capsys.readouterr().out
    moved = {path.name for path in (first.out / "replaced").glob("mquake/toy-4l-*/*.pt")}
    assert moved == {"logitlens_3exps.pt", "layer_effects_3exps@part=mlp.pt"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        study = Study(first.out)
    assert {key[2]: result["meta"]["n_prompts"] for key, result in study.items()} == {"logit_lens": 4}
    Run(cell | {"N_EXAMPLES": 5, "REPLACE": True}).settle("logit_lens")
    assert len([*(first.out / "replaced/mquake").iterdir()]) == 2 and not replacing.folder.exists()


def test_what_a_run_prints_and_what_it_notes_of_a_result(cell, capsys):
    run = Run(cell | {"PROBES": ["logit_lens"], "SEED": 7})
    run.begin()
    for probe in ("logit_lens", "logit_lens", "layer_effects"):
        run.result(probe)
    path, (*parameters, loading, computed, read, left_out) = (
        run.path("logit_lens"),
        capsys.readouterr().out.splitlines(),
    )
    assert any("MODEL" in line and "toy-4l" in line for line in parameters) and loading == "loading toy-4l"
    assert re.fullmatch(rf"logit_lens: computed in \d+\.\d s, written to {path}", computed)
    assert read == f"logit_lens: read from {path}, nothing to compute"
    assert left_out == "layer_effects: left out (PROBES = logit_lens)"
    meta = dl.load_artifact(path)["meta"]
    assert (meta["model"], meta["dataset"], meta["seed"], meta["jobs"]) == ("toy-4l", "mquake", 7, [])
    assert 0 < meta["seconds"] < 600
    record = run.folder / "run.json"
    assert record.read_text().startswith('{\n "made_from": {\n  "model_id": "toy-4l",\n')
    record.write_text("damaged")
    run.note()
    assert json.loads(record.read_text()).keys() == {"made_from", "versions", "params"}


def test_a_run_asks_for_every_probe_and_for_the_lens_as_its_parameters_say(cell, tmp_path):
    (tmp_path / "lens.pt").touch()
    run = Run(cell | {"LENS": str(tmp_path / "lens.pt"), "GENERATE": 5, "CONTROL": True})
    assert run.asked == {
        "logit_lens": ("logit_lens", {}),
        "layer_effects": ("layer_effects", {}),
        "logit_lens@lens": ("logit_lens", {"lens": str(tmp_path / "lens.pt")}),
        "logit_lens@generate": ("logit_lens", {"generate": 5, "per_token": True}),
        "logit_lens@weights=random": ("logit_lens", RANDOM),
    }


def test_texts_are_drawn_with_the_runs_seed_and_the_baseline_is_gsm8ks_or_ones_own(cell):
    run = Run(cell | {"DATASET": "sums", "SEED": 7})
    assert run.prompts == dl.load_prompts("sums", 3, seed=7) and run.examples == dl.load_examples("sums", 3, seed=7)
    gsm8k = dl.load_prompts("gsm8k", 3, source="embedded")
    for changed in ({}, {"PART": "question"}, {"DATASET": "hellaswag"}):
        assert Run(cell | {"SOURCE": "embedded"} | changed).baseline == gsm8k
    assert Run(cell | {"DATASET": "mine"}, prompts=["a", "b"]).baseline == ["a", "b"]
    on_hub = Run(cell | {"DATASET": "hellaswag", "SOURCE": "hub"}).made_from("residual_erasure", "block_accuracy")
    assert on_hub["baseline"] == f"{dataset_named('gsm8k').definition} seed 123 all"


def test_a_run_is_locked_while_it_is_claimed_or_computed(cell):
    run = Run(cell)
    lock = run.folder.parent / ".toy-4l.lock"
    with run._alone():
        assert holder(lock)
    assert not holder(lock)


def test_a_result_of_an_earlier_version_is_gone_before_the_record_has_the_new_one(cell, monkeypatch):
    run = Run(cell | {"PROBES": ["logit_lens"]})
    run.result("logit_lens")
    monkeypatch.setitem(ARTIFACTS, "logit_lens", replace(ARTIFACTS["logit_lens"], version=2))
    assert run.lacking == ["logit_lens"]
    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr("depth_lib.results.artifacts.save_artifact", lambda *_: (_ for _ in ()).throw(OSError("full")))
        run.result("logit_lens")
    assert run.lacking == ["logit_lens"]


def test_a_model_of_ones_own_is_loaded_as_the_parameters_say_if_it_fits(cell, tmp_path, monkeypatch):
    asked, folder = [], save_family("llama", tmp_path / "mine", char_tokenizer())
    monkeypatch.setattr("depth_lib.models.memory.check_fits", lambda source, **how: asked.append((source, how)))
    llm = Run(cell | {"MODEL": str(folder), "DTYPE": "bfloat16"}).llm
    how = {"revision": None, "dtype": "bfloat16", "quantization": None, "device_map": "auto"}
    assert asked == [(str(folder), how)] and llm.dtype == torch.bfloat16
    assert len(Run(cell).llm.blocks) == 4 and len(asked) == 1


@pytest.mark.parametrize("probe, dataset", [("block_accuracy", "gsm8k"), ("depth_by_difficulty", "sums")])
def test_choices_and_examples_are_as_long_as_their_longest_text(cell, probe, dataset):
    run = Run(cell | {"DATASET": dataset, "PROBES": [probe], "N_EXAMPLES": 6})
    items = run._texts(probe, run.llm, {})
    texts = [[x.context + end for end in x.endings] if dataset == "gsm8k" else [x.question + x.answer] for x in items]
    n_tokens = [max(len(run.llm.tokenizer(text)["input_ids"]) for text in of_item) for of_item in texts]
    limit = run.llm.config.max_position_embeddings = sorted(n_tokens)[len(items) // 2]
    with pytest.warns(UserWarning, match="are longer than the model's"):
        short = run._texts(probe, run.llm, {})
    assert short == [item for item, n in zip(items, n_tokens, strict=True) if n <= limit]


def test_what_is_changed_is_part_of_the_name_and_a_file_or_an_array_is_named_by_its_content(cell, tmp_path):
    run = Run(cell)
    mlp = run.result("layer_effects", part="mlp")
    assert mlp["meta"]["settings"]["part"] == "mlp" and run.path("layer_effects", part="mlp").exists()
    assert torch.equal(
        mlp["max_all_layer"], dl.layer_effects(run.llm, run.prompts, mode="all", part="mlp")["max_all_layer"]
    )
    assert not run.is_done("layer_effects") and run.is_done("layer_effects", part="mlp")
    long = torch.arange(5000.0)
    others = [long, long.clone().index_fill_(0, torch.tensor([2500]), 0), long[:-1], long.double(), [1, 2], [1, 3]]
    assert len({label_of({"sizes": value}) for value in others}) == len(others)
    assert label_of({"sizes": long.clone()}) == label_of({"sizes": long.numpy()}) == label_of({"sizes": long})
    (tmp_path / "a.pt").write_text("one")
    one = label_of({"lens": tmp_path / "a.pt"})
    (tmp_path / "a.pt").write_text("two")
    assert one == "lens=a-7692c3ad" != label_of({"lens": tmp_path / "a.pt"})


@pytest.mark.parametrize("probe", [probe for probe, row in ARTIFACTS.items() if row.settings])
def test_a_run_passes_every_setting_of_a_row_to_its_function(cell, probe, monkeypatch):
    row, calls = ARTIFACTS[probe], []
    dataset = "sums" if row.by_level else "gsm8k"
    run = Run(cell | {"DATASET": dataset, "PROBES": [probe]})
    monkeypatch.setattr(dl, row.function or probe, lambda llm, **how: calls.append(how) or {}, raising=False)
    monkeypatch.setattr(run, "_texts", lambda *_: [])
    run._call(probe, None, {})
    expected = {name: value for name, value in run.settings(probe).items() if name != "modes"}
    assert calls and all(how.items() >= expected.items() for how in calls)
    assert [how.get("mode") for how in calls] == list(row.settings.get("modes", [None]))


def test_a_lens_that_was_fitted_again_is_another_result_and_the_study_says_so(cell, toy, tmp_path):
    lens = tmp_path / "ridge.pt"
    texts = dl.load_prompts("gsm8k", 3, source="embedded")
    dl.fit_lens(toy, texts, "ridge", lens)
    run = Run(cell | {"PROBES": ["logit_lens"], "LENS": str(lens)})
    run.result("logit_lens")
    assert [probe for probe, _ in run.further()] == ["logit_lens"] and run.lacking == []
    dl.fit_lens(toy, texts[:2], "ridge", lens)
    assert run.lacking == ["logit_lens@lens"]
    with pytest.warns(UserWarning, match="logit_lens@lens=ridge-.* was computed with .*ridge.pt, which has changed"):
        Study(run.out)


def test_a_result_that_the_record_does_not_fit_is_named_by_a_study(cell):
    run = Run(cell)
    run.result("logit_lens")
    record = json.loads((run.folder / "run.json").read_text())
    record["made_from"]["n_examples"] = 5
    (run.folder / "run.json").write_text(json.dumps(record))
    with pytest.warns(UserWarning, match="logit_lens is not what run.json says .N_EXAMPLES: 3, requested 5."):
        Study(run.out)


@pytest.mark.parametrize("meta", [3, {"settings": 3}, {"versions": "1"}, {"prompts_hash": [1]}])
def test_one_file_with_odd_meta_is_left_out_of_a_folder_and_named(cell, meta):
    run = Run(cell)
    run.result("logit_lens")
    stored = torch.load(run.path("logit_lens"), weights_only=True)
    torch.save(stored | {"meta": meta}, run.folder / "local_effects_3exps.pt")
    torch.save(stored | {"meta": meta}, run.folder / "logitlens_4exps@lens=a.pt")
    with pytest.warns(UserWarning, match="its meta"):
        frame = dl.load_results(run.out)
    assert {*frame.probe} == {"logit_lens"}


def test_a_result_that_is_cut_off_is_damaged_in_the_status_and_computed_again(cell, capsys):
    run = Run(cell | {"PROBES": ["logit_lens"]})
    run.result("logit_lens")
    run.note()
    path = run.path("logit_lens")
    for kept in (0, path.stat().st_size // 2):
        path.write_bytes(path.read_bytes()[:kept] if kept else b"")
        capsys.readouterr()
        assert main(["status", "--out", cell["OUT"]]) == 0
        assert "damaged" in (said := capsys.readouterr().out) and "0 of 1 done" in said
        with pytest.raises(MissingArtifact, match=f"{path.name} is not a depth_lib artifact, or is damaged: "):
            dl.load_results(run.out)
        assert run.result("logit_lens")["n_tokens"].shape == (3,) and run.lacking == []


def test_numbers_by_level_without_the_levels_are_named(cell, tmp_path):
    from tests.synthetic import artifact_path, result_of, save

    save(tmp_path, "toy-4l", "logit_lens", 4)
    found = result_of("depth_by_difficulty", 4)
    del found["levels"]
    torch.save(found, artifact_path(tmp_path, "gsm8k", "toy-4l", "depth_by_difficulty", 10))
    with pytest.warns(UserWarning, match="it has mean_layer_effect without levels"):
        assert {*dl.load_results(tmp_path).probe} == {"logit_lens"}


def test_own_prompts_are_filed_under_a_name_of_ones_own(cell):
    run = Run(cell | {"DATASET": "mine", "N_EXAMPLES": None}, prompts=["5 + 7 = 12", "3 + 4 = 7"])
    assert run.result("logit_lens")["meta"]["n_prompts"] == 2 and run.folder.parent.name == "mine"
    assert Run({"MODEL": "toy-4l", "DATASET": "mine", "N_EXAMPLES": 1}, prompts=["a", "b"]).prompts == ["a"]
    for dataset, prompts, said in (
        ("gsm8k", ["a"], "gsm8k is the name of a data set; for your own"),
        ("mine", [], "there are no prompts"),
    ):
        with pytest.raises(ValueError, match=said):
            Run(cell | {"DATASET": dataset}, prompts=prompts)


def test_every_way_to_name_a_toy_reads_the_embedded_prompts_and_a_copy_of_it_those_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params/models/mine").mkdir(parents=True)
    (tmp_path / "params/models/mine/my-model.yaml").write_text("MODEL: my-model\nMODEL_ID: toy-loop\nDTYPE: float32\n")
    (tmp_path / "linked").symlink_to(toy_path("toy-4l"))
    copied = shutil.copytree(toy_path("toy-4l"), tmp_path / "copied")
    source = {
        name: Run({"MODEL": str(name)}).params.SOURCE for name in (*TOYS, *map(toy_path, TOYS), "my-model", "linked")
    }
    assert {*source.values()} == {"embedded"} and len(source) == 10
    assert Run({"MODEL": "toy-loop", "PASSES": 3, "N_EXAMPLES": 2}).prompts == dl.load_prompts(
        "gsm8k", 2, source="embedded"
    )
    assert resolved({"MODEL": "other", "MODEL_ID": "toy-8l"}).SOURCE == "embedded"
    assert resolved({"MODEL": str(copied)}).SOURCE == "hub"
    assert resolved({"MODEL": "toy-4l", "SOURCE": "sample"}).SOURCE == "sample"


def test_a_named_source_is_for_the_data_sets_that_ship_and_another_keeps_its_own(cell, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params/datasets").mkdir(parents=True)
    (tmp_path / "params/datasets/mine.yaml").write_text("DATASET: mine\nFILE: mine.txt\n")
    (tmp_path / "mine.txt").write_text("5 + 7 = 12\n\n3 + 4 = 7\n")
    for source in ("sample", "embedded"):
        mine, gsm8k = (Run(cell | {"DATASET": name, "SOURCE": source, "N_EXAMPLES": 2}) for name in ("mine", "gsm8k"))
        assert mine.prompts == ["5 + 7 = 12", "3 + 4 = 7"] and gsm8k.params.SOURCE == source
    main(["sweep", "--models", "toy-4l", "--datasets", "mine gsm8k", "--source", "sample", "--list"])
    of_gsm8k, of_mine = capsys.readouterr().out.splitlines()
    assert "gsm8k --source sample" in of_gsm8k and "--source" not in of_mine
    (tmp_path / "params/datasets/gsm8k.yaml").write_text("DATASET: gsm8k\nFILE: mine.txt\n")
    for how in ({"SOURCE": "hub"}, {"MODEL": "toy-4l"}):
        of_file = {name: value for name, value in cell.items() if name != "SOURCE"} | {"DATASET": "gsm8k"} | how
        assert Run(of_file | {"N_EXAMPLES": 2}).prompts == mine.prompts, "a file of one's own replaces the package's"


def test_names_that_are_no_parameter_are_refused_and_in_a_notebook_only_capitals_that_nearly_spell_one(cell):
    near = {"n_example": "N_EXAMPLES", "ANSWRS": "ANSWER", "MODELS": "MODEL"}
    said = {name: f'^unknown parameter "{name}"; did you mean "{other}"\\?$' for name, other in near.items()}
    for name, message in (said | {"xyz": '^unknown parameter "xyz"; use "MODEL", '}).items():
        with pytest.raises(ParamsError, match=message):
            Run(cell | {name: 3})
    with pytest.raises(ParamsError, match='^unknown parameter "N_EXAMPLE"; did you mean "N_EXAMPLES"?'):
        Run(cell | {"N_EXAMPLE": 3, "__name__": "__main__"})
    own = {
        "SEEDS": [1],
        "MODELS": ["a"],
        "ANSWERS": ["b"],
        "TRAINING": "base",
        "MY_NAMES": 1,
        "n_example": 3,
        "__name__": "__main__",
    }
    assert Run(cell | own).params.N_EXAMPLES == 3


def test_a_disk_that_refuses_is_named_with_what_to_do(cell, tmp_path, monkeypatch):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(ParamsError, match="out.*: Not a directory; make the path writable"):
        Run(cell).result("logit_lens")


def test_remote_local_runs_here_as_a_server_would(cell):
    run = Run(cell | {"REMOTE": "local", "PROBES": ["logit_lens"]})
    assert run.result("logit_lens")["meta"]["where"] == "local cpu, as a remote call" and run.lacking == []


def test_a_remote_run_without_a_key_is_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("NDIF_API_KEY", "no key")
    monkeypatch.setenv("NDIF_HOST", "https://api.ndif.us")
    with pytest.raises(SystemExit, match="there is no NDIF key for https://api.ndif.us"):
        main(["run", "Llama-3.1-8B", "gsm8k", "--remote", "--source", "embedded", "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("gsm8k --lens short.txt", "LENS=.*short.txt: no such .pt file; check"),
        ("gsm8k --lens text.pt", "text.pt is not a lens for all layers: it is damaged"),
        ("gsm8k --lens eight.pt", "the lens does not fit toy-4l: it has A .8, 128, 128. and b .8, 128., but the mod"),
        ("gsm8k --chat", "toy-4l has no chat template; use plain prompts"),
        (
            "mine --source short.txt --probes layer_effects",
            'prompts are too short: mode "future" needs at least 13 tokens',
        ),
    ],
)
def test_what_no_probe_can_do_is_refused_before_weights_are_loaded_or_a_notebook_starts(
    tmp_path, monkeypatch, asked, said
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("depth_lib.models.load._load_weights", None)
    monkeypatch.setattr("depth_lib.sweep.cli.execute", None)
    for name in ("short.txt", "text.pt"):
        Path(name).write_text("5 + 7 = 12\n")
    Lens(A=torch.zeros(8, 128, 128), b=torch.zeros(8, 128)).save("eight.pt")
    words = ["toy-4l", *asked.split()]
    with pytest.raises(SystemExit, match=said):
        main(["run", *words])
    assert not Path("outputs").exists()
    names = dict(zip([word.lstrip("-").upper() for word in words[2::2]], words[3::2], strict=False))
    cell = {"MODEL": "toy-4l", "DATASET": words[1], "CHAT": "--chat" in words} | names
    with pytest.raises(ValueError, match=said):
        Run(cell).begin()


def test_a_run_leaves_out_our_prompts_that_are_too_long_and_counts_them_and_refuses_the_users_own(cell, tmp_path):
    cell |= {"DATASET": "hellaswag", "MODEL": "eight", "MODEL_ID": "toy-8l", "N_EXAMPLES": 12, "PROBES": ["logit_lens"]}
    run = Run(cell | {"SOURCE": "sample"})
    n_tokens = [len(run.llm.tokenizer(prompt)["input_ids"]) for prompt in run.prompts]
    limit = run.llm.config.max_position_embeddings = sorted(n_tokens)[7]
    with pytest.warns(UserWarning, match=f"4 of 12 prompts are longer than the model's {limit} positions and are left"):
        result = run.result("logit_lens")
    short = [prompt for prompt, n in zip(run.prompts, n_tokens, strict=True) if n <= limit]
    assert result["meta"]["prompts_hash"] == prompts_hash(short) and result["meta"]["n_prompts"] == 8
    assert run.is_done("logit_lens") and len(result["n_tokens"]) == 8
    (tmp_path / "mine.txt").write_text("\n".join(prompt.replace("\n", " ") for prompt in run.prompts))
    own = Run(cell | {"SOURCE": str(tmp_path / "mine.txt")})
    own.llm.config.max_position_embeddings = limit
    with pytest.raises(ValueError, match=f"has [0-9]+ tokens, but the model has {limit} positions; use a shorter text"):
        own.result("logit_lens")


def test_a_control_is_the_untrained_models_result_beside_the_runs_own_and_no_other_reader_sees_it(cell):
    run = Run(cell | {"CONTROL": True, "PROBES": ["logit_lens", "layer_effects"]})
    assert run.lacking == ["logit_lens", "layer_effects", "logit_lens@weights=random"]
    results = [run.result("logit_lens"), run.result("layer_effects")]
    kept = {path: path.read_bytes() for path in run.folder.glob("*.pt")}
    assert [*run.further()] == [] and run.lacking == [], "its figures are not drawn"
    assert {path: path.read_bytes() for path in kept} == kept
    control = dl.load_artifact(run.path("logit_lens", **RANDOM))
    expected = dl.logit_lens(untrained(run.llm), run.prompts)
    assert torch.equal(control["res_kl_divs"], expected["res_kl_divs"])
    assert not torch.equal(control["res_kl_divs"], results[0]["res_kl_divs"])
    assert control["meta"]["weights"] == "random" and results[0]["meta"]["weights"] != "random"
    study = Study(run.out)
    assert {probe for _, _, probe in study} == {"logit_lens", "layer_effects"}
    frame = depths(study).set_index(["variant", "rule"])
    assert frame.loc[CONTROL].note.str.startswith("no reliable depth").all() and len(frame.loc[CONTROL]) == 2
