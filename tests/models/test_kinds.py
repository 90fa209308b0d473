"""Whatever kind of model transformers has: it runs and gives what plain PyTorch gives, or is refused with a reason."""

import pytest

from tests.models.kinds import KINDS, MULTIMODAL, state

# Refused: blocks that run in two loops, or not without an image, and streams before the batch's axis.
REFUSED = {"gemma3n_text", "hrm_text", "mllama"}
WHOLE_BLOCKS = {
    "beam",
    "deepseek_v4",
    "doge",
    "gemma4",
    "gemma4_text",
    "git",
    "gpt_neox_japanese",
    "hy_v4",
    "longcat_flash",
}
WHOLE_BLOCKS |= {"gemma4_unified", "gemma4_unified_text", "minimax", "openai-gpt", "rwkv", "trocr", "zaya"}
# One of each sort: plain, parallel, post-norm, recurrent, hybrid of one mixer a block, hybrid with experts,
# normalised after each addition, two token mixers a block, several streams, and a model that reads images too.
ARCHETYPES = (
    "llama",
    "gptj",
    "olmo2",
    "mamba",
    "nemotron_h",
    "qwen3_next",
    "openai-gpt",
    "falcon_h1",
    "hy_v4",
    "mistral3",
)


@pytest.mark.parametrize(
    "kind",
    [
        *ARCHETYPES,
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in [*KINDS, *MULTIMODAL] if kind not in ARCHETYPES),
    ],
)
def test_a_kind_gives_what_plain_pytorch_gives(kind):
    outcome, found, off = state(kind)
    if outcome == "not built":
        pytest.skip(found)
    expected = "refused" if kind in REFUSED else "blocks only" if kind in WHOLE_BLOCKS else "all probes"
    assert outcome == expected
    assert all(error <= 1e-5 for error in off.values()), off
