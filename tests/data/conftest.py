"""Files of rows, and a data set of one's own."""

import json

import pytest


@pytest.fixture
def rows(tmp_path):
    def write(*items, name="rows.jsonl"):
        path = tmp_path / name
        path.write_text("".join((item if isinstance(item, str) else json.dumps(item)) + "\n" for item in items))
        return path

    return write


@pytest.fixture
def own(tmp_path, monkeypatch):
    """own(**keys) writes params/datasets/mine.yaml in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params/datasets").mkdir(parents=True)
    return lambda **keys: (tmp_path / "params/datasets/mine.yaml").write_text(json.dumps(keys))
