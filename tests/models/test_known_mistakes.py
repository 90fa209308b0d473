"""A warning where the installed transformers computes a model wrongly."""

import pytest
from transformers import LlamaConfig, Olmo3Config

from depth_lib.models import known_mistakes, load
from depth_lib.results.provenance import made_from
from tests.families import build
from tests.tiny_tokenizers import char_tokenizer

YARN = {"rope_type": "yarn", "rope_theta": 500000.0, "factor": 8.0, "original_max_position_embeddings": 8192}


@pytest.mark.parametrize(
    ("version", "config", "wrong"),
    [
        ("5.0.0", Olmo3Config(rope_parameters=YARN), True),
        ("5.12.4", Olmo3Config(rope_parameters=YARN), True),
        ("4.57.1", Olmo3Config(rope_parameters=YARN), False),
        ("5.13.0", Olmo3Config(rope_parameters=YARN), False),
        ("5.12.4", Olmo3Config(), False),
        ("5.12.4", LlamaConfig(rope_parameters=YARN), False),
    ],
)
def test_yarn_of_olmo_3_is_wrong_in_transformers_5_0_to_5_12(monkeypatch, version, config, wrong):
    monkeypatch.setattr(known_mistakes.transformers, "__version__", version)
    assert ("install 5.13 or later" in known_mistakes.mistake_in(config)) == wrong


def test_it_is_warned_of_when_a_model_is_loaded_and_said_in_provenance(monkeypatch):
    monkeypatch.setattr(load, "mistake_in", lambda config: "a known mistake")
    with pytest.warns(UserWarning, match="a known mistake"):
        load.wrapped(build("llama"), char_tokenizer())
    assert made_from({"model_id": "a/b", "mistake": "a known mistake"}).endswith("; a known mistake")
