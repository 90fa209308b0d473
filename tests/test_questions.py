"""A run on questions, chat prompts and stored responses: its folder's name and its numbers."""

import json

import pytest
import torch

import depth_lib as dl
from depth_lib.effective_depth.tables import depths
from depth_lib.report.table import made_from
from depth_lib.results.study import Study


def test_a_run_of_questions_lies_beside_that_of_whole_prompts_and_reads_the_lens_on_responses(tmp_path):
    asked = {"MODEL": "toy-4l", "N_EXAMPLES": 2, "OUT": str(tmp_path), "PROBES": ["logit_lens"], "GENERATE": 3}
    run = dl.Run(asked | {"PART": "question"})
    assert run.folder == tmp_path / "gsm8k-question" / "toy-4l" and len(run.asked) == 2
    questions = dl.load_prompts("gsm8k", 2, source="embedded", part="question")
    assert run.prompts == questions and questions != dl.Run(asked).prompts
    ((_, result),) = run.further()
    truth = dl.logit_lens(run.llm, questions, generate=3, per_token=True)
    assert torch.equal(result["res_jsd"], truth["res_jsd"]) and result["generated"] == truth["generated"]
    assert all(torch.equal(*pair) for pair in zip(result["settling"], truth["settling"], strict=True))
    assert dl.Run(asked | {"PART": "question", "CHAT": True}).folder.parent.name == "gsm8k-question-chat"


def test_stored_responses_are_measured_where_the_datasets_file_names_their_field(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"q": "5 + 7 = ", "response": "12"}, {"q": "3 + 4 = ", "response": "7 or 8"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "params/datasets").mkdir(parents=True)
    own = {"FILE": "rows.jsonl", "QUESTION_TEMPLATE": "{{ q }}", "ANSWERS": "response", "SOURCE": "hub"}
    (tmp_path / "params/datasets/mine.yaml").write_text(json.dumps(own))
    asked = {"MODEL": "toy-4l", "DATASET": "mine", "N_EXAMPLES": 2, "OUT": str(tmp_path), "SOURCE": "hub"}
    run = dl.Run(asked | {"PART": "question", "PROBES": ["logit_lens", "relative_contribution"]})
    questions, responses = [row["q"] for row in rows], [row["response"] for row in rows]
    for probe, key in (("logit_lens", "res_kl_divs"), ("relative_contribution", "rc_att")):
        truth = getattr(dl, probe)(run.llm, questions, answers=responses)
        assert torch.equal(run.result(probe)[key], truth[key])
        assert run.result(probe)["n_tokens"].tolist() == [2, 6]
        assert run.result(probe)["meta"]["settings"] == truth["meta"]["settings"] == {"answers": responses}
    assert run.folder == tmp_path / "mine-answers" / "toy-4l"
    assert {*depths(Study(tmp_path)).dataset} == {"mine-answers"}
    assert [*made_from(Study(tmp_path)).source] == ["rows.jsonl"]
    assert len(dl.early_exit(run.result("logit_lens"))) == 4


def test_a_chat_run_says_the_hash_of_the_prompts_that_it_measured(tmp_path):
    run = dl.Run({"MODEL": "toy-4l", "N_EXAMPLES": 2, "OUT": str(tmp_path), "PROBES": ["logit_lens"], "CHAT": True})
    run.llm.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %} answer:"
    chats, meta = dl.chat_prompts(run.llm, run.prompts), run.result("logit_lens")["meta"]
    assert meta["prompts_hash"] == dl.logit_lens(run.llm, chats)["meta"]["prompts_hash"] and meta["chat"]


def test_choices_are_a_runs_too(tmp_path):
    asked = {"MODEL": "toy-4l", "N_EXAMPLES": 3, "OUT": str(tmp_path), "PROBES": ["block_accuracy", "direct_effects"]}
    run = dl.Run(asked)
    found = run.result("block_accuracy")
    truth = dl.block_accuracy(run.llm, dl.load_choices("hellaswag", 3, source="embedded"))
    assert torch.equal(found["accuracy"], truth["accuracy"]) and found["chance"] == pytest.approx(0.25)
    assert run.result("direct_effects")["tokens"] == ["2", "8"]
