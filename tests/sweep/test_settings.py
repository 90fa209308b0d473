"""Every key of a run, a model's file and a data set's file that decides what is measured makes a result a new one."""

import json

import pytest

import depth_lib.data.prompts as prompts
from depth_lib.params import DatasetFile, ModelFile, Params
from depth_lib.run import Run
from depth_lib.sweep.status import runs_in

DECIDE_NO_NUMBER = {"DEVICE_MAP", "PROBES", "OUT", "REPLACE", "TRAINING", "BILLIONS"}
EVERY_KEY = {*DatasetFile.model_fields, *ModelFile.model_fields}
OF_HUB = {"REPOSITORY": "owner/rows", "DATASET": "mine", "SOURCE": "hub"}
OF_FILE = {"FILE": "rows.jsonl", "DATASET": "mine", "SOURCE": "hub"}
TEMPLATES = {"QUESTION_TEMPLATE": "{{ q }}", "ANSWER_TEMPLATE": "{{ a }}"}
LENS, EXAMPLES, PAIR = "logit_lens", "depth_by_difficulty", "integrated_gradients"
# key of a run -> its other value, the keys given besides, and a result that must then be measured again
OF_RUN = {
    "MODEL": ("toy-8l", {}, LENS),
    "MODEL_ID": ("toy-8l", {"MODEL": "one", "MODEL_ID": "toy-4l"}, LENS),
    "REVISION": ("v2", {"MODEL": "one", "MODEL_ID": "owner/one"}, LENS),
    "DTYPE": ("float64", {}, LENS),
    "QUANTIZATION": ("8bit", {}, LENS),
    "PASSES": (2, {}, LENS),
    "LENS": ("lens.pt", {}, "logit_lens@lens"),
    "CONTROL": (True, {}, "logit_lens@weights=random"),
    "REMOTE": ("http://localhost:1", {"MODEL": "one", "MODEL_ID": "owner/one"}, LENS),
    "DATASET": ("gsm8k", {"SOURCE": "embedded"}, LENS),
    "N_EXAMPLES": (1, {}, LENS),
    "SOURCE": ("other.jsonl", {}, LENS),
    "PART": ("question", {}, LENS),
    "CHAT": (True, {}, LENS),
    "GENERATE": (3, {}, "logit_lens@generate"),
    "PAIR": ("spouse", {}, PAIR),
    "QUESTION": ("1 + 1 = ", {"QUESTION": "1 + 2 = ", "ANSWER": "3"}, PAIR),
    "ANSWER": ("4", {"QUESTION": "1 + 2 = ", "ANSWER": "3"}, PAIR),
    "SEED": (7, {"PAIR": "addition"}, PAIR),
}
# key of a data set's file -> its other value, and a result that must then be measured again
OF_DATASET = {
    "REPOSITORY": ("owner/others", LENS),
    "CONFIG": ("other", LENS),
    "SPLIT": ("test", LENS),
    "DATASET_REVISION": ("v2", LENS),
    "FILE": ("other.jsonl", LENS),
    "TEMPLATE": ("{{ q }}!", LENS),
    "LEVEL": ("other_level", EXAMPLES),
    "WITHIN_ANSWER": (True, EXAMPLES),
    "MAX_TOKENS": (4, LENS),
    "LENGTH_TOKENIZER": ("owner/pairs", LENS),
    "QUESTION_TEMPLATE": ("{{ q }}?", LENS),
    "ANSWER_TEMPLATE": ("{{ a }}!", EXAMPLES),
    "ANSWERS": ("response", LENS),
}


class Letters:
    """A tokenizer whose tokens are so many characters."""

    def __init__(self, name):
        self.size = 2 if name == "owner/pairs" else 1

    def encode(self, text):
        return text[:: self.size]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prompts, "_length_tokenizer", lambda dataset, name: Letters(name))
    rows = [{"q": q, "a": q[0], "response": q[::-1], "again": q, "level": 1, "other_level": 2} for q in ("12", "567")]
    for name, kept in (("rows", rows), ("other", rows[::-1])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, kept)))
    (tmp_path / "lens.pt").write_text("a lens")
    (tmp_path / "params/datasets").mkdir(parents=True)
    return tmp_path


def run_of(cell, of_dataset, **changed):
    """A run on the data set with these keys in its file."""
    with open("params/datasets/mine.yaml", "w") as file:
        json.dump(of_dataset, file)
    asked = {"MODEL": "toy-4l", "DATASET": "mine", "N_EXAMPLES": 2, "OUT": "out", "PROBES": [LENS, PAIR]}
    asked["PROBES"] += [EXAMPLES] * ("LEVEL" in of_dataset)
    return Run(asked | cell | changed)


def finish(run):
    """Leave the results that a run asks for, without numbers."""
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    for probe, changed in run.asked.values():
        run._note(run.path(probe, **changed), probe)
        run.path(probe, **changed).write_bytes(b"PK\5\6" + bytes(18))  # an empty zip file
    assert run.lacking == []


def test_no_key_is_forgotten():
    assert OF_RUN.keys() | OF_DATASET.keys() | DECIDE_NO_NUMBER == EVERY_KEY
    assert OF_RUN.keys() & DECIDE_NO_NUMBER == set() and OF_RUN.keys() <= Params.model_fields.keys()


@pytest.mark.parametrize("key", OF_RUN)
def test_a_run_with_another_value_measures_again(files, key):
    value, cell, result = OF_RUN[key]
    of_dataset = OF_FILE | TEMPLATES
    finish(run_of(cell, of_dataset))
    assert result in run_of(cell, of_dataset, **{key: value}).lacking
    assert run_of(cell, of_dataset).lacking == []


ONLY_HUB = ("REPOSITORY", "CONFIG", "SPLIT", "DATASET_REVISION")
PLACES = [(key, OF_HUB) for key in OF_DATASET] + [(key, OF_FILE) for key in OF_DATASET if key not in ONLY_HUB]


@pytest.mark.filterwarnings("ignore:mine from .* has only 1 prompts")
@pytest.mark.parametrize("key, place", PLACES)
def test_a_data_set_with_another_value_added_or_removed_is_measured_again(files, key, place):
    value, result = OF_DATASET[key]
    cell = {"PART": "question"} if key == "ANSWERS" else {}
    before = place | TEMPLATES | {"LEVEL": "level"}
    before |= {"MAX_TOKENS": 3, "LENGTH_TOKENIZER": "owner/letters"} if place is OF_HUB or "TOKEN" in key else {}
    after = before | {key: value} | ({"REPOSITORY": None} if key == "FILE" else {})
    finish(run_of(cell, before))
    assert result in run_of(cell, after).lacking, "added or changed"
    finish(run_of(cell | {"OUT": "reverse"}, after))
    assert result in run_of(cell | {"OUT": "reverse"}, before).lacking, "removed or changed back"
    assert run_of(cell, before).lacking == []


def test_a_folder_with_the_name_of_a_model_on_the_hub_is_another_model(files):
    asked = {"MODEL": "one", "MODEL_ID": "owner/one"}
    finish(run_of(asked, OF_FILE | TEMPLATES))
    record = files / "out/mine/one/run.json"
    record.write_text(record.read_text().replace("owner/one", "one"))  # as for gpt2, which has no owner
    (files / "owner/one").mkdir(parents=True)
    (files / "owner/one/config.json").write_text("{}")
    assert run_of(asked, OF_FILE | TEMPLATES).other_settings(LENS) == ["different weights"]


def test_two_runs_whose_folders_have_the_same_name_by_chance_are_two(files):
    of_dataset = OF_FILE | TEMPLATES
    (files / "params/datasets/mine-chat.yaml").write_text(json.dumps(of_dataset | {"DATASET": "mine-chat"}))
    finish(run_of({"CHAT": True}, of_dataset))
    named = run_of({"DATASET": "mine-chat"}, of_dataset)
    assert named.folder.is_dir() and named.other_settings(LENS) == ["CHAT: True, requested False"]
    finish(run_of({"PASSES": 2}, of_dataset))
    named = run_of({"MODEL": "toy-4l-x2", "MODEL_ID": "toy-4l", "DTYPE": "float32"}, of_dataset)
    assert named.folder.is_dir() and named.other_settings(LENS) == ["PASSES: 2, requested 1"]


def test_another_field_of_responses_or_none_is_another_setting_in_the_same_folder(files):
    asked = {"MODEL": "toy-4l", "DATASET": "mine", "PART": "question", "N_EXAMPLES": 2, "PROBES": [LENS]}
    stored = {"made_from": {"responses": "abc"}, "versions": {"logitlens_2exps.pt": 1}, "params": asked}
    folder = files / "out/mine-question/toy-4l"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(stored))
    (folder / "logitlens_2exps.pt").write_bytes(b"PK\5\6" + bytes(18))
    without = run_of({"PART": "question", "PROBES": [LENS]}, OF_FILE | TEMPLATES)
    assert without.folder.samefile(folder) and without.other_settings(LENS) == ["different responses"]
    answered = run_of({"PART": "question", "PROBES": [LENS]}, OF_FILE | TEMPLATES | {"ANSWERS": "response"})
    finish(answered)
    assert answered.folder == files / "out/mine-answers/toy-4l"
    runs, problems = runs_in(files / "out")
    assert [run.folder for run in runs] == [answered.folder], "and not a second time for the folder of the questions"
    assert problems == [f"{folder}: its command would now write to {answered.folder}"]
    other = run_of({"PART": "question", "PROBES": [LENS]}, OF_FILE | TEMPLATES | {"ANSWERS": "again"})
    assert other.other_settings(LENS) == ["different responses"]
    assert run_of({"PROBES": [LENS]}, OF_FILE | TEMPLATES | {"ANSWERS": "again"}).folder.parent.name == "mine"
