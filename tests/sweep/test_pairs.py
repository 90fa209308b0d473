"""A question of one's own, from the command line to the results of a run, beside the papers' question."""

from dataclasses import replace

import pytest
import torch

import depth_lib as dl
from depth_lib.data.pairs import PAIRS
from depth_lib.params import ParamsError
from depth_lib.results.study import Study, load_results
from depth_lib.sweep import run as runs
from depth_lib.sweep.plan import Plan
from depth_lib.sweep.run import Run
from depth_lib.sweep.status import matrix, status_of

ABOUT_A_PAIR = ["residual_erasure", "integrated_gradients", "attention_gradients", "mlp_gradients", "future_erasure"]


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    """A parameters cell whose results are there for the papers' question and for another."""
    cell = {"MODEL": "toy-4l", "MODEL_ID": "toy-4l", "REVISION": None, "DTYPE": "float32", "QUANTIZATION": None}
    cell |= {"DEVICE_MAP": None, "REMOTE": False, "DATASET": "addition", "N_EXAMPLES": 2, "SOURCE": "embedded"}
    cell |= {"PROBES": ["logit_lens", *ABOUT_A_PAIR], "SEED": 1, "OUT": str(tmp_path_factory.mktemp("results"))}
    for asked in (cell, cell | {"QUESTION": "2 + 9 = ", "ANSWER": "11"}):
        run = Run(asked)
        for probe in cell["PROBES"]:
            run.result(probe)
    return cell


@pytest.fixture
def no_loading(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(runs, "load_model", refuse)


def test_two_questions_lie_beside_each_other_and_each_is_read_again(cell, no_loading, capsys):
    papers, own = Run(cell), Run(cell | {"QUESTION": "2 + 9 = ", "ANSWER": "11"})
    for probe in ABOUT_A_PAIR:
        assert papers.paths[probe] != own.paths[probe] and papers.paths[probe].parent == own.paths[probe].parent
        for run in (papers, own):
            settings = run.result(probe)["meta"]["settings"]
            assert (settings["question"], settings["answer"]) == (run.pair.question, run.pair.answer)
    assert papers.paths["logit_lens"] == own.paths["logit_lens"], "no question, no name"
    assert capsys.readouterr().out.count("nothing to compute") == 2 * len(ABOUT_A_PAIR)
    text = own.paths["residual_erasure"].with_name(f"logit_erasure_tokens_2exps_{own.pair.label}.txt").read_text()
    assert "".join(text.splitlines()).replace("␣", " ").endswith("2 + 9 = 11")


def test_the_papers_question_keeps_its_files_names_in_whatever_words_it_is_asked_for(cell):
    for asked in ({}, {"PAIR": "sum"}, {"QUESTION": PAIRS["sum"][0], "ANSWER": "28"}):
        assert Run(cell | asked).paths["residual_erasure"].name == "logit_erasure_2exps.pt"


def test_what_is_stored_is_what_the_probes_say_of_that_question(cell, no_loading):
    llm, run = dl.load_model("toy-4l"), Run(cell | {"QUESTION": "2 + 9 = ", "ANSWER": "11"})
    gradients = dl.integrated_gradients(llm, "2 + 9 = ", "11")
    assert torch.allclose(run.result("integrated_gradients")["igrads"], gradients["igrads"], rtol=1e-4, atol=1e-6)
    erased = dl.residual_erasure(llm, "2 + 9 = ", "11", dl.load_prompts("gsm8k", 2, source="embedded"))
    stored = run.result("residual_erasure")
    assert torch.allclose(stored["erasure_effect"], erased["erasure_effect"], atol=1e-5)
    assert stored["tokens"] == erased["tokens"]


def test_a_drawn_pair_of_another_seed_is_stale(cell, tmp_path, capsys):
    asked = cell | {"PAIR": "addition", "OUT": str(tmp_path), "PROBES": ["integrated_gradients"]}
    Run(asked).result("integrated_gradients")
    Run(asked | {"SEED": 2}).result("integrated_gradients")
    assert "settings.question: stored Give the answer directly" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"QUESTION": "1 + 1 = "}, "give ANSWER too"),
        ({"ANSWER": "2"}, "give QUESTION too"),
        ({"QUESTION": "", "ANSWER": "2"}, 'QUESTION is ""; it should have at least 1 character'),
        ({"PAIR": "spose"}, "no pair is called 'spose'; did you mean spouse"),
        ({"QUESTION": 7, "ANSWER": "2"}, "QUESTION is 7"),
    ],
)
def test_half_a_pair_is_one_line_that_names_it(cell, change, said):
    with pytest.raises(ParamsError, match=said) as raised:
        Run(cell | change)
    assert "\n" not in str(raised.value)


def test_study_table_and_figures_know_both_questions(cell):
    from depth_lib.effective_depth.tables import depths
    from depth_lib.figures import save_figures

    label = Run(cell | {"QUESTION": "2 + 9 = ", "ANSWER": "11"}).pair.label
    study = Study(cell["OUT"])
    assert study.pairs == [label]
    assert study["addition", "toy-4l", f"residual_erasure:{label}"]["meta"]["settings"]["answer"] == "11"
    assert study["addition", "toy-4l", "residual_erasure"]["meta"]["settings"]["answer"] == "28"
    assert {"erasure", f"erasure:{label}"} <= set(depths(study).metric)
    assert {"residual_erasure", f"residual_erasure:{label}"} <= set(load_results(cell["OUT"]).probe)
    drawn = {path.name for path in save_figures(study)}
    assert {f"{kind}.png" for kind in ABOUT_A_PAIR} <= drawn
    assert {f"{kind}_{label}.png" for kind in ABOUT_A_PAIR} <= drawn


def test_status_tells_questions_apart(cell):
    plan = Plan(models=("toy-4l",), datasets=("addition",), probes=tuple(cell["PROBES"]), out=cell["OUT"])
    given = {"N_EXAMPLES": 2, "SEED": 1, "PAIR": "spouse"}
    (run,) = replace(plan, overrides=given).runs()
    (run.spec.folder / "probe.ipynb").touch()
    status = status_of(run)
    assert {probe: cell.state for probe, cell in status.cells.items()} == {
        "logit_lens": "done",
        **dict.fromkeys(("attention_gradients", "mlp_gradients", "future_erasure"), "missing"),
    }
    assert "future_erasure:spouse" in matrix(cell["OUT"], [status]).splitlines()[0]


def test_a_pair_by_name_takes_the_place_of_a_question_in_the_params(command, study):
    file = study / "params" / "datasets" / "gsm8k.yaml"
    before = file.read_text()
    try:
        file.write_text(before + 'QUESTION: "1 + 1 = "\nANSWER: "2"\n')
        asked = ("sweep", "--models", "toy-4l", "--datasets", "gsm8k", "--probes", "residual_erasure")
        assert command(*asked).calls[0]["QUESTION"] == "1 + 1 = "
        call = command(*asked, "--pair", "nested").calls[0]
        assert (call["PAIR"], call["QUESTION"]) == ("nested", None)
    finally:
        file.write_text(before)
