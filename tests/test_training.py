"""Effective depth while a model trains, in a loop of one's own and in transformers' Trainer."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import depth_lib as dl
from tests.marks import slow
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


class Losses:
    """The prompts' mean loss after each step, in plain PyTorch."""

    def __init__(self):
        self.seen = {}

    def on_step_end(self, args, state, control, model, **trainer):
        model.eval()
        ids = [char_tokenizer()(prompt, return_tensors="pt")["input_ids"] for prompt in PROMPTS]
        with torch.no_grad():
            self.seen[state.global_step] = float(torch.stack([model(x, labels=x).loss for x in ids]).mean())
        model.train()


@pytest.mark.parametrize("early", [slow(False), True])
def test_the_last_steps_entry_is_of_the_last_step_also_where_the_best_model_is_loaded_at_the_end(tmp_path, early):
    # They import peft and bitsandbytes, which no other process needs.
    from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

    tokenizer, callback = char_tokenizer(), dl.DepthCallback(PROMPTS, every=2)
    losses = type("LossesCallback", (Losses, TrainerCallback), {})()
    rows = [{"input_ids": ids[:20], "labels": ids[:20]} for ids in tokenizer(PROMPTS * 8)["input_ids"]]
    often = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "greater_is_better": True}
    often |= {"gradient_checkpointing": True}  # which leaves a list of hooks on the model
    arguments = TrainingArguments(
        tmp_path, max_steps=5, use_cpu=True, report_to=[], disable_tqdm=True, learning_rate=1e-2, **often, **best
    )
    others = [EarlyStoppingCallback(2)] if early else []
    callbacks = [losses, callback, *others]
    data = {"train_dataset": rows, "eval_dataset": rows[:2]}
    trainer = Trainer(small(), arguments, **data, processing_class=tokenizer, callbacks=callbacks)
    trainer.train()
    frame, last = callback.log.to_frame().set_index("step"), max(losses.seen)
    assert trainer.state.best_global_step < last and frame.index[-1] == last and frame.index.is_unique
    for step in frame.index[1:]:
        assert np.isclose(frame.loss[step], losses.seen[step], rtol=1e-4)


def test_weights_that_are_not_finite_give_a_row_and_a_missing_depth_its_reason(tmp_path):
    (tmp_path / "log.csv").write_text("of an earlier training")
    log, model = dl.DepthLog(PROMPTS, char_tokenizer(), tmp_path / "log.csv"), small()
    log.measure(model, 0)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] = torch.nan
    log.measure(model, 1)
    frame = log.to_frame()
    assert frame.loss.isna().tolist() == [False, True]
    assert frame.reason[1] == "model.layers.1.mlp.up_proj.weight is not finite" and frame.reason[0]
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "log.csv"), frame)
    assert (tmp_path / "log.csv.replaced-1").read_text() == "of an earlier training"
    row = log.measure(small(), 1)
    frame = log.to_frame()
    assert frame.step.tolist() == [0, 1] and frame.loss[1] == row["loss"], "the same step again replaces its row"
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "log.csv"), frame)
    with pytest.raises(ValueError, match="step must be at least 1, got 0"):
        log.measure(model, 0)
    with pytest.raises(ValueError, match="is not a .csv file; use a path such as"):
        dl.DepthLog(PROMPTS, char_tokenizer(), tmp_path)


def test_the_log_of_a_training_that_is_resumed_begins_with_the_rows_before_its_checkpoint(tmp_path):
    model, file, args = small(), tmp_path / "depth_log.csv", SimpleNamespace(output_dir=tmp_path)

    def trained_at(*steps):
        callback = dl.DepthCallback(PROMPTS, every=1, tokenizer=char_tokenizer())
        for step in steps:
            state = SimpleNamespace(global_step=step, is_world_process_zero=True, log_history=[])
            (callback.on_train_begin if step == steps[0] else callback.on_step_end)(args, state, None, model=model)
        return callback.log.to_frame()

    whole = trained_at(0, 2, 4)
    assert trained_at(4, 7).step.tolist() == [0, 2, 4, 7] and [*tmp_path.iterdir()] == [file], "no row is lost"
    resumed = trained_at(4, 6)
    assert resumed.step.tolist() == [0, 2, 4, 6] and (tmp_path / "depth_log.csv.replaced-1").exists()
    pd.testing.assert_frame_equal(resumed[:3], whole)
    pd.testing.assert_frame_equal(pd.read_csv(file), resumed)
    assert trained_at(8).step.tolist() == [0, 2, 4, 6, 8] and not (tmp_path / "depth_log.csv.replaced-2").exists()
    assert trained_at(0).step.tolist() == [0] and (tmp_path / "depth_log.csv.replaced-2").exists()
    header, *rows = file.read_text().splitlines(keepends=True)
    damaged = "of something else", header + header + "".join(rows), header + "".join(rows) + "lr lowered here\n"
    for number, content in enumerate((*damaged, header + "1,lr lowered\n"), 3):
        file.write_text(content)
        assert trained_at(3).step.tolist() == [3]
        assert (tmp_path / f"depth_log.csv.replaced-{number}").read_text() == content


def test_two_logs_of_one_file_lose_no_row(tmp_path):
    model, file = small(), tmp_path / "log.csv"
    one, other = (dl.DepthLog(PROMPTS[:n], char_tokenizer(), file) for n in (2, 3))
    one.measure(model, 0)
    other.measure(model, 0)
    with pytest.warns(UserWarning, match="log.csv is also written by .*; this log continues in .*log-2.csv"):
        one.measure(model, 1)
    for step in (2, 3):
        for log in (one, other):
            log.measure(model, step)
    assert {path.name for path in tmp_path.iterdir()} == {"log.csv", "log-2.csv", "log.csv.replaced-1"}
    for log, path in ((one, tmp_path / "log-2.csv"), (other, file)):
        pd.testing.assert_frame_equal(pd.read_csv(path), log.to_frame())


def test_each_callback_of_a_trainer_has_its_own_log_also_where_it_is_resumed(tmp_path):
    model, args = small(), SimpleNamespace(output_dir=tmp_path)

    def frames(begin, end):
        callbacks = [dl.DepthCallback(PROMPTS[:n], every=1, tokenizer=char_tokenizer()) for n in (2, 3)]
        state = SimpleNamespace(global_step=begin, is_world_process_zero=True, log_history=[])
        for callback in callbacks:
            callback.on_train_begin(args, state, None, model=model)
        state.global_step = end
        for callback in callbacks:
            callback.on_step_end(args, state, None, model=model)
        return [callback.log.to_frame() for callback in callbacks]

    whole = frames(0, 1)
    assert not np.isclose(whole[0].loss[0], whole[1].loss[0])
    resumed = frames(1, 2)
    assert {path.name for path in tmp_path.iterdir()} == {"depth_log.csv", "depth_log-2.csv"}
    for name, before, after in zip(("depth_log.csv", "depth_log-2.csv"), whole, resumed, strict=True):
        assert after.step.tolist() == [0, 1, 2]
        pd.testing.assert_frame_equal(after[:1], before[:1])
        pd.testing.assert_frame_equal(pd.read_csv(tmp_path / name), after)


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="no torch.distributed")
def test_sharded_weights_are_refused_on_every_rank(tmp_path):
    """Two processes with FSDP2, as a training loop has them."""
    script, here = Path(__file__).with_name("sharded.py"), Path(__file__).parent.parent
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", script, tmp_path]
    environment = os.environ | {"PYTHONPATH": str(here)}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=here, env=environment)
    said = [line for line in ended.stdout.splitlines() if "rank" in line]
    assert len(said) == 2 and all("the weights are sharded (FSDP, ZeRO-3)" in line for line in said), ended.stderr
