"""A curve that carries no depth is said to: of models without training, and of no other."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch

import depth_lib as dl
from depth_lib.effective_depth.rules import LEAST_COSINE, RULES
from depth_lib.effective_depth.tables import depths
from depth_lib.results.study import Study
from tests.effective_depth.null import measured, untrained
from tests.synthetic import save


@pytest.fixture(scope="module")
def toy():
    llm = dl.load_model("toy-8l")
    prompts = [prompt[:200] for prompt in dl.load_prompts("gsm8k", 3, source="embedded")]
    return llm, prompts, dl.relative_contribution(llm, prompts), dl.logit_lens(llm, prompts)


@pytest.mark.slow
@pytest.mark.timeout(900)  # forty models, built and measured
def test_of_random_models_at_most_one_in_twenty_has_a_depth():
    rows = pd.DataFrame(map(measured, untrained()))
    for name in RULES:
        assert rows[f"{name} without criteria"].any(), "nothing to refuse"
        assert rows[f"{name} unmarked"].mean() <= 0.05


def test_the_model_that_has_learnt_something_keeps_its_depths_and_its_loss_is_plain_pytorchs(toy):
    llm, prompts, contribution, lens = toy
    for prompt, loss, shuffled in zip(prompts, lens["loss"], lens["shuffled_loss"], strict=True):
        ids = llm.tokenizer(prompt, return_tensors="pt")["input_ids"]
        assert torch.isclose(loss, llm._module(input_ids=ids, labels=ids).loss, rtol=1e-4)
        log_y = llm._module(input_ids=ids).logits[0, :-1].log_softmax(-1)
        orders = [log_y.gather(1, ids[0, 1:].roll(k)[:, None]).mean() for k in range(len(log_y))]
        assert torch.isclose(shuffled, -torch.stack(orders).mean(), rtol=1e-4)
    assert torch.isclose(contribution["chance_cos"], torch.tensor(llm._module.config.hidden_size**-0.5))
    assert not any(RULES[name].no_signal(contribution if name == "cosine" else lens) for name in RULES)
    assert dl.effective_depth_kl(lens) == dl.effective_depth_kl(lens["res_kl_divs"]) is not None
    assert "loss" not in dl.logit_lens(llm, prompts[:1], generate=2), "of its own likeliest words every model has one"


def test_a_depth_without_signal_is_a_dash_with_the_reason_in_call_frame_interval_and_summary(toy, tmp_path):
    _, _, contribution, lens = toy
    flat = lens | {"res_kl_divs": lens["res_kl_divs"] / lens["res_kl_divs"].max() * 0.05}
    ignorant = lens | {"loss": lens["shuffled_loss"] - 0.4}
    chance = LEAST_COSINE * contribution["chance_cos"]
    size = np.sqrt(np.square(RULES["cosine"].curve(contribution)).mean())
    small = contribution | {key: contribution[key] * 0.9 * chance / size for key in RULES["cosine"].keys}
    with pytest.warns(UserWarning, match="^no reliable depth: the lens.s largest KL divergence is 0.05 nats"):
        assert dl.effective_depth_kl(flat) is None
    with pytest.warns(
        UserWarning,
        match="predicts these prompts hardly better .* than shuffled ones .*; a difference of at least 0.5 is needed",
    ):
        assert dl.effective_depth_overlap(ignorant) is None
    with pytest.warns(UserWarning, match="cosines of 0.0.* do not stand out from those of random .* .0.088"):
        assert dl.effective_depth_cosine(small) is None
    found = dl.effective_depths(flat)
    assert found.ed.isna().all() and found.note.str.startswith("no reliable depth: the lens's largest KL").all()
    for probe, result in (("logit_lens", flat), ("relative_contribution", contribution)):
        save(tmp_path, "toy", probe, n=3, result=result)
    of_study = depths(Study(tmp_path)).set_index("rule")
    assert of_study.ed[found.index].isna().all() and (of_study.note[found.index] == found.note).all()


def test_prompts_of_one_token_have_no_depth_and_no_warning(toy):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = dl.logit_lens(toy[0], ["x"]).depths()
    assert found.ed.isna().all() and found.note.str.contains("no prompt has more than one token").all()
