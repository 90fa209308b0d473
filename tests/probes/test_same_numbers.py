"""A probe's numbers do not depend on how its runs share passes."""

import torch

import depth_lib as dl
from depth_lib.models.families import describe
from tests.families import build, make_identity
from tests.probes.comparing import SIXTY, loaded


def test_plain_families_share_passes(toy):
    """Where a shortcut is taken to fail, the numbers are right and take twice as long."""
    arch = describe(toy)
    assert arch.can_skip_blocks and arch.can_add_rows


def test_bfloat16_effects_of_identity_blocks_are_exactly_zero():
    """An intervention is compared with a row of its own batch, so nothing but the intervention can differ."""
    llm = loaded(make_identity(build("llama", torch.bfloat16), (2, 3)))
    effects = dl.layer_effects(llm, [SIXTY])
    assert not effects["max_future_layer"][2:].any() and not effects["max_future_out"][2:].any()
    assert effects["max_future_out"][0] > 0
