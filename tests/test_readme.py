"""README and docs: short, with links and commands that are there."""

import re
from pathlib import Path

import yaml

import depth_lib as dl
from depth_lib.sweep.cli import COMMANDS
from depth_lib.sweep.plan import Plan

ROOT = Path(__file__).parents[1]
PAGES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"))}
README = PAGES[ROOT / "README.md"]


def test_every_link_to_a_file_leads_there_and_the_readme_to_every_page():
    missing = []
    for page, text in PAGES.items():
        links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
        missing += [f"{page.name}: {link}" for link in links if not (page.parent / link).exists()]
    assert missing == []
    assert {f"docs/{page.name}" for page in PAGES if page.parent == ROOT / "docs"} <= set(
        re.findall(r"\]\(([^)]+)\)", README)
    )


def test_every_make_target_named_is_one():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page, text in PAGES.items():
        named = set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE))
        assert named <= targets, f"{page.name}: {named - targets}"


def test_every_command_of_depth_lib_named_is_one():
    for page, text in PAGES.items():
        named = set(re.findall(r"(?:^|`|/)depth-lib ([a-z]+)", text, re.MULTILINE))
        assert named <= set(COMMANDS), f"{page.name}: {named - set(COMMANDS)}"


def test_the_example_of_a_dataset_of_ones_own_is_one(tmp_path, monkeypatch):
    example = re.search(r"```yaml\n(.*?)```", PAGES[ROOT / "docs/prompts.md"], re.DOTALL)[1]
    folder = tmp_path / "params/datasets"
    folder.mkdir(parents=True)
    (folder / f"{yaml.safe_load(example)['DATASET']}.yaml").write_text(example)
    (tmp_path / "questions.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')
    monkeypatch.chdir(tmp_path)
    (run,) = Plan(MODELS=["toy-4l"], DATASETS=["my-questions"]).runs()
    assert run.params["SOURCE"] == "hub", "not what a toy's params file says"
    assert dl.load_prompts("my-questions", n_examples=1) == ["Question: 1 + 1?\nAnswer: 2"]
    (tmp_path / "questions.jsonl").rename(folder / "questions.jsonl")
    assert dl.load_prompts("my-questions", n_examples=1) == ["Question: 1 + 1?\nAnswer: 2"], "beside the YAML"
