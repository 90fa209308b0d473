"""Effective depths of a model on prompts, beside its architecture without training."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch

import depth_lib as dl
from depth_lib.depths import CONTROL, untrained


def test_the_control_has_the_same_architecture_other_weights_and_no_depth():
    llm, prompts = dl.load_model("toy-8l"), dl.load_prompts("mquake", 3, source="embedded")
    state = torch.random.get_rng_state()
    found = dl.effective_depths(llm, prompts, control=True)
    assert torch.equal(state, torch.random.get_rng_state())
    own = pd.concat([dl.effective_depths(probe(llm, prompts)) for probe in (dl.relative_contribution, dl.logit_lens)])
    pd.testing.assert_frame_equal(found.loc["the model"], own)
    pd.testing.assert_frame_equal(dl.effective_depths(llm, prompts), own)
    control = found.loc[CONTROL]
    plt.close(plt.figure().gca().plot([0, 1], [control.ratio["kl"], 1])[0].figure)  # no depth is a gap
    assert control.ed.isna().all() and control.note.str.startswith("no reliable depth: ").all()
    random, again = untrained(llm)._module, untrained(llm)._module
    shapes = {name: weight.shape for name, weight in llm._module.named_parameters()}
    assert {name: weight.shape for name, weight in random.named_parameters()} == shapes
    assert all(torch.equal(one, other) for one, other in zip(random.parameters(), again.parameters(), strict=True))
    assert not torch.equal(random.model.layers[0].mlp.up_proj.weight, llm._module.model.layers[0].mlp.up_proj.weight)
    pd.testing.assert_frame_equal(dl.effective_depths(llm, prompts, remote="local"), own)
    with pytest.raises(ValueError, match="control draws random weights on this machine"):
        dl.effective_depths(llm, prompts, control=True, remote="local")
    with pytest.raises(ValueError, match="prompts, control and remote need a model"):
        dl.effective_depths(dl.logit_lens(llm, prompts), control=True)
    with pytest.raises(ValueError, match="pass the prompts too"):
        dl.effective_depths(llm)
