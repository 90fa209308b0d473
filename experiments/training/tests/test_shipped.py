"""The toys of the training experiment that ship with shared layers."""

import pytest
import torch

from depth_lib import load_model
from experiments.training.experiment import TOYS
from experiments.training.shared import GROUP


@pytest.mark.parametrize("loss", ["all", "answers"])
def test_a_shared_toy_computes_what_its_two_blocks_in_a_loop_compute(loss):
    llm = load_model(TOYS / f"toy-shared-{loss}", dtype="float32")
    model, ids = llm._module, llm.tokenizer("5 + 7 + 5 + 3 + 1 + 7 = 28", return_tensors="pt").input_ids
    with torch.no_grad():
        unrolled = model(input_ids=ids, use_cache=False).logits
        for l in range(GROUP, len(model.model.layers)):
            model.model.layers[l] = model.model.layers[l % GROUP]
        looped = model(input_ids=ids, use_cache=False).logits
    torch.testing.assert_close(looped, unrolled, atol=1e-6, rtol=0)
