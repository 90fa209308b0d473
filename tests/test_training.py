"""Effective depth while a model trains, in a loop of one's own and in transformers' Trainer."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer, TrainingArguments

import depth_lib as dl
from tests.tiny_tokenizers import VOCABULARY_SIZE, char_tokenizer

PROMPTS = [f"{a} + {b} = {a + b}, and {b} + {a} = {a + b}" for a, b in ((3, 4), (5, 2), (8, 1))]


def small(seed=0):
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        attention_dropout=0.1,
        tie_word_embeddings=False,
    )
    return Qwen2ForCausalLM(config)


def trained(model, log=None, steps=20):
    """The weights after so many steps of plain PyTorch, with a measurement at every tenth."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ids = char_tokenizer()(PROMPTS, return_tensors="pt", padding=True)["input_ids"]
    model.train()
    for step in range(steps):
        if log and step % 10 == 0:
            log.measure(model, step)
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    return model


def test_a_log_measures_without_changing_the_training_and_has_nan_where_there_is_no_depth(tmp_path):
    log = dl.DepthLog(PROMPTS, char_tokenizer(), tmp_path / "new/log.csv")
    model = small()
    model.model.layers[2].eval()  # a part that somebody froze stays in its mode
    watched = trained(small(), log)
    assert all(p.requires_grad for p in watched.parameters()) and all(m.training for m in watched.modules())
    for one, other in zip(watched.parameters(), trained(small()).parameters(), strict=True):
        assert torch.equal(one, other), "measuring drew random numbers, or left a mode behind"
    log.measure(model, 20)
    assert not model.model.layers[2].training and model.training
    frame = log.to_frame()
    assert frame.step.tolist() == [0, 10, 20] and frame.loss[1] < frame.loss[0]
    assert frame.loc[0, ["cosine", "kl", "overlap"]].isna().all(), "an untrained model has no depth"
    assert frame.filter(regex=r"^kl_\d$").shape == (3, 4)
    assert np.allclose(frame.filter(regex=r"^kl_\d$").max(axis=1), frame.largest_kl)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "new/log.csv"), frame)
    ids = [char_tokenizer()(prompt, return_tensors="pt")["input_ids"] for prompt in PROMPTS]
    losses = [model.eval()(input_ids=x, labels=x).loss for x in ids]
    assert np.isclose(frame.loss[2], torch.stack(losses).mean().item(), rtol=1e-4)
    figure = log.plot()
    assert [line.get_label() for line in figure.axes[0].lines] == ["cosine", "kl", "overlap"]
    plt.close(figure)


def test_the_trainers_log_has_the_depths_of_every_so_many_steps(tmp_path):
    tokenizer, model = char_tokenizer(), small()
    rows = [{"input_ids": ids, "labels": ids} for ids in tokenizer(PROMPTS * 8)["input_ids"]]
    rows = [{key: value[:20] for key, value in row.items()} for row in rows]
    arguments = TrainingArguments(
        tmp_path, max_steps=5, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, learning_rate=1e-2
    )
    callback = dl.DepthCallback(PROMPTS, every=2)
    trainer = Trainer(model, arguments, train_dataset=rows, processing_class=tokenizer, callbacks=[callback])
    trainer.train()
    assert callback.log.to_frame().step.tolist() == [0, 2, 4, 5]
    logged = [entry for entry in trainer.state.log_history if "prompts_loss" in entry]
    assert [entry["step"] for entry in logged] == [0, 2, 4, 5]
    assert len(pd.read_csv(tmp_path / "depth_log.csv")) == 4
    with pytest.raises(ValueError, match="every is 0; give a number of steps"):
        dl.DepthCallback(PROMPTS, every=0)
    bare = Trainer(small(), arguments, train_dataset=rows, callbacks=[dl.DepthCallback(PROMPTS)])
    with pytest.raises(ValueError, match="DepthCallback needs a tokenizer"):
        bare.train()
