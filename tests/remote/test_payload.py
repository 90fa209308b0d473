"""How much travels to a server: sources and token ids, some kilobytes."""

import re
import zlib

import pytest
import zstandard

import depth_lib as dl
from depth_lib import api
from depth_lib.data import tokens
from depth_lib.remote.server import Server
from tests.remote.loopback.fixture import hurried, loopback  # noqa: F401 (fixtures)

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


def realistic(text):
    """The ids of a text in a vocabulary of Llama 3's size, a word or sign each: a word that recurs has its id again."""
    return [zlib.crc32(word.encode()) % 128_256 for word in re.findall(r"\w+|[^\w\s]", text)]


@pytest.mark.parametrize("probe", CALLS)
def test_ten_real_prompts_are_one_payload_under_20_kb(loopback, monkeypatch, probe):  # noqa: F811
    """GSM8K's own first problems, and the model's check in the same job."""
    prompts = [realistic(text) for text in dl.load_prompts("gsm8k", 10, source="sample")]
    assert sum(map(len, prompts)) > 1_500
    question = realistic(dl.load_prompts("gsm8k", 1, source="sample")[0])[:60]
    for module in (api, tokens):
        monkeypatch.setattr(module, "tokenize", lambda llm, texts: prompts)
    monkeypatch.setattr(api, "answer_span", lambda llm, *texts: (question, [57, 58, 59], ["?"] * 60))

    def send(server, model_key, env, blob):
        raise Sent(blob)

    monkeypatch.setattr(Server, "submit", send)
    with pytest.raises(Sent) as sent:
        CALLS[probe](loopback.model("loopback/deep"), remote=loopback.host)
    (payload,) = sent.value.args
    print(probe, len(payload))
    assert 5_000 < len(payload) < 20_000
    assert b"def identities(" in zstandard.ZstdDecompressor().decompress(payload)
