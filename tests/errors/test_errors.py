"""Error messages: errors.txt has a call and the one line that answers it.

`ERRORS=new pytest tests/errors` writes what is said now; review the diff.
"""

import os
import re
import warnings
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
import transformers

import depth_lib as dl
from depth_lib.pruning import Pruned
from tests.families import save_family
from tests.tiny_tokenizers import char_tokenizer

PAGE = Path(__file__).with_name("errors.txt")
WRITTEN = PAGE.read_text(encoding="utf-8")
PARTS = re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", WRITTEN, re.M)


@pytest.fixture(scope="module")
def names(toy, tmp_path_factory):
    """What the calls may name: a toy, its lens, and a model with learned positions, whose empty text has no tokens."""
    llm = dl.load_model(save_family("gpt2", tmp_path_factory.mktemp("gpt2"), char_tokenizer(bos=False)))
    lens = dl.logit_lens(toy, ["5 + 7 = 12 and 3 + 4 = 7"])
    text, packages = "The quick brown fox jumps", {"dl": dl, "np": np, "pd": pd, "torch": torch, "datasets": datasets}
    rows = datasets.Dataset.from_dict({"question": [text], "text": [text]})
    return packages | {
        "transformers": transformers,
        "Pruned": Pruned,
        "Path": Path,
        "__file__": __file__,
        "toy": toy,
        "llm": llm,
        "lens": lens,
        "LATE": {"generated": [], "settling": [[1, 4]], "res_settled": [0.0] * 4},
        "TEXT": text,
        "ROWS": rows,
    }


def answered(call, names):
    """What a call is answered by, without this machine's folders."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            eval(call, dict(names))
            return "nothing"
        except Exception as error:  # whatever it is, it is written down
            said = f"{type(error).__name__}: {error}"
            return re.sub(
                rf"{Path.cwd()}/|{Path(dl.__file__).parent}/|{Path(__file__).parent}/|\S*bin/(?=depth-lib)", "", said
            )


@pytest.mark.parametrize("part", [part for part, _ in PARTS])
def test_what_cannot_be_is_refused_in_the_line_that_is_written(part, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written = dict(PARTS)[part]
    said = "".join(f">>> {call}\n{answered(call, names)}\n" for call in re.findall("^>>> (.*)", written, re.M))
    if os.environ.get("ERRORS") == "new":
        page = PAGE.read_text(encoding="utf-8").replace(f"## {part}\n{written}", f"## {part}\n{said}")
        PAGE.write_text(page, encoding="utf-8")
    assert said == written
    assert not re.search(r"(?m)[^.]\.$", said)  # no message ends with a full stop
