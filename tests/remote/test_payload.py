"""How much travels to a server: statements and token ids, few bytes of both, and both whole."""

import ast
from pathlib import Path

import pytest
import torch
import zstandard

import depth_lib as dl
from depth_lib import api, session
from depth_lib.remote.token_ids import laid_out, put_back, with_ids
from depth_lib.remote.travel import _statements
from tests.remote.loopback.fixture import hurried, loopback  # noqa: F401 (fixtures)

PACKAGE = Path(dl.__file__).parent
CALLS = {
    "relative_contribution": lambda llm, **where: dl.relative_contribution(llm, ["text"], **where),
    "layer_effects": lambda llm, **where: dl.layer_effects(llm, ["text"], **where),
    "layer_effects_all": lambda llm, **where: dl.layer_effects(llm, ["text"], mode="all", **where),
    "logit_lens": lambda llm, **where: dl.logit_lens(llm, ["text"], **where),
    "residual_erasure": lambda llm, **where: dl.residual_erasure(llm, "1 + 1 = ", "2", ["text"], **where),
    "integrated_gradients": lambda llm, **where: dl.integrated_gradients(llm, "1 + 1 = ", "2", **where),
}


class Sent(Exception):
    """Carries the payloads that would have been sent."""


@pytest.mark.parametrize("probe", CALLS)
def test_ten_prompts_of_250_random_ids_are_one_payload_under_16_kb(loopback, monkeypatch, probe):  # noqa: F811
    """The worst there is: ids without any pattern from Llama 3's vocabulary, and the model's check in the same job."""
    draw = torch.Generator().manual_seed(1)
    prompts = torch.randint(128_256, (10, 250), generator=draw).tolist()
    question = torch.randint(128_256, (60,), generator=draw).tolist()
    monkeypatch.setattr(api, "tokenize", lambda llm, texts: prompts)
    monkeypatch.setattr(api, "answer_span", lambda llm, *texts: (question, [57, 58, 59], ["?"] * 60))

    def send(function, llm, calls, remote, label):
        raise Sent([session._payload(llm, function, session.travelling(function), args) for args in calls])

    monkeypatch.setattr(session, "_on_server", send)
    with pytest.raises(Sent) as sent:
        CALLS[probe](loopback.model("loopback/deep"), remote=loopback.host)
    (payload,) = sent.value.args[0]
    assert 5_000 < len(payload) < 16_000
    assert b"def identities(" in zstandard.ZstdDecompressor().decompress(payload)


def test_token_ids_come_back_as_they_were():
    arguments = (
        {"n_layers": 4},
        [[1, 128_255, 2**24 - 1], []],
        [([5, 6], [8]), ([7], None)],
        [True, 1],
        [2**24],
        [-1],
        3,
        "text",
        [0.5],
        torch.Size([2, 3]),
        None,
    )
    placed, planes = laid_out(arguments)
    assert sum(map(len, planes)) == 3 * 7
    back = with_ids(placed, put_back(planes))
    assert back == arguments and list(map(type, back)) == list(map(type, arguments))
    assert back[3][0] is True


@pytest.mark.parametrize("file", sorted((PACKAGE / "probes").glob("*.py")), ids=lambda file: file.stem)
def test_every_statement_travels_on_its_own_line_and_no_word_about_it(file):
    lines = file.read_text().splitlines(keepends=True)
    sent = _statements(tuple(lines))
    original = ast.parse("".join(lines))
    for node in ast.walk(original):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body.pop(0)
    assert _places(ast.parse("".join(sent))) == _places(original)
    assert len(sent) == len(lines) and "#" not in "".join(sent) and '"""' not in "".join(sent)


def _places(tree):
    return ast.dump(tree, include_attributes=True)


ODD = '''
def only_words():
    """Without them there would be no body."""  # nor is this one

def short(): "words"; return "#1"

def both():
    "words"; x = 1
    return x

def accented(name="é#"):  # é
    """Ünïcode
    # in two lines"""
    return f"{name}#" + \'\'\'# not
    a comment\'\'\'  # a comment
'''


def test_sources_of_odd_shape_stay_whole():
    sent = "".join(_statements(tuple(ODD.splitlines(keepends=True))))
    assert sent.count("\n") == ODD.count("\n")
    assert "Ünïcode" not in sent and "a comment\n" not in sent and "nor is" not in sent
    here, there = {}, {}
    exec(ODD, here)
    exec(sent, there)
    for name in ("only_words", "short", "both", "accented"):
        assert here[name]() == there[name]()
        assert here[name].__code__.co_firstlineno == there[name].__code__.co_firstlineno
