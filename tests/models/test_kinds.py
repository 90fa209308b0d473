"""Whatever kind of model transformers has: it runs and gives what plain PyTorch gives, or is refused with a reason."""

import re
from pathlib import Path

import pytest

from tests.marks import others_slow
from tests.models.kinds import KINDS, MULTIMODAL, state

DOCUMENTED = Path(__file__).parents[2] / "docs" / "architectures.csv"
NOT_BUILT = {*re.findall(r"^([^,]+),not built,", DOCUMENTED.read_text(encoding="utf-8"), re.MULTILINE)}

# Refused: blocks that run in two loops, or not without an image, streams before the batch's axis, and logits that are
# made of several blocks' residuals.
REFUSED = {"gemma3n_text", "hrm_text", "inkling2_text", "mllama"}
WHOLE_BLOCKS = {"deepseek_v4", "doge", "git", "hy_v4", "longcat_flash"}
WHOLE_BLOCKS |= {"minimax", "openai-gpt", "rwkv", "trocr", "zaya"}
# Blocks read more of earlier ones than the residual: probes that change it refuse them, in one sentence.
READ_MORE = {"glm_moe_dsa", "hy_v4", "mistral_large4", "zaya"}
# One of each sort that tests/families.py lacks: hybrid of one mixer a block, normalised after each addition, two token
# mixers a block, several streams, a number that multiplies the residual after each block, and one that reads images.
QUICK = "nemotron_h openai-gpt hy_v4 gemma4_text mistral3".split()


@pytest.mark.parametrize("kind", others_slow([*KINDS, *MULTIMODAL], QUICK))
def test_a_kind_gives_what_plain_pytorch_gives(kind):
    outcome, found, off = state(kind)
    if outcome == "not built":
        assert kind in NOT_BUILT, found
        return
    sorts = {"refused": REFUSED, "reading only": READ_MORE, "blocks only": WHOLE_BLOCKS}
    expected = next((sort for sort, kinds in sorts.items() if kind in kinds), "all probes")
    assert outcome == expected
    assert all(error <= 1e-5 for error in off.values()), off
