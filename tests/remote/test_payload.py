"""How much travels to a server: sources and token ids, some kilobytes."""

import pytest
import torch
import zstandard

import depth_lib as dl
from depth_lib import api
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


@pytest.mark.parametrize("probe", CALLS)
def test_ten_prompts_of_250_random_ids_are_one_payload_under_20_kb(loopback, monkeypatch, probe):  # noqa: F811
    """The worst there is: ids without any pattern from Llama 3's vocabulary, and the model's check in the same job."""
    draw = torch.Generator().manual_seed(1)
    prompts = torch.randint(128_256, (10, 250), generator=draw).tolist()
    question = torch.randint(128_256, (60,), generator=draw).tolist()
    monkeypatch.setattr(api, "tokenize", lambda llm, texts: prompts)
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
