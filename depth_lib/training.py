"""Effective depth while a model trains: a log for your own loop, and a callback for transformers' Trainer."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .data.tokens import texts_of
from .effective_depth.tables import effective_depths
from .figures.marks import COLOURS, STYLE
from .files import path_of, writable_folder, write_beside
from .models.bare import check_kind
from .models.load import load_model
from .params import warn
from .probes.logit_lens import logit_lens
from .probes.relative_contribution import relative_contribution
from .public import with_checked_kinds

METRICS = ("cosine", "kl", "overlap")


class DepthLog:
    """The effective depths of a model on the same prompts, over training steps.

    - prompts: list of strings
    - tokenizer: the model's tokenizer
    - path: a .csv file, rewritten after each measurement. If the file exists before the first measurement, it is
      renamed to `<name>.replaced-1`. If something else writes it later, the log continues in `<name>-2.csv`, with a
      warning
    """

    @with_checked_kinds
    def __init__(
        self, prompts: Sequence[str], tokenizer: PreTrainedTokenizerBase, path: str | Path | None = None
    ) -> None:
        check_kind(tokenizer)
        if path is not None and (path := path_of(path)).suffix.lower() != ".csv":
            raise ValueError(f"{path} is not a .csv file; use a path such as depths.csv")
        self.prompts, self.tokenizer = texts_of(prompts), tokenizer
        self.path = None if path is None else writable_folder(path.parent, ValueError) / path.name
        self._rows, self._first, self._written = [], True, b""

    @with_checked_kinds
    def measure(self, model: nn.Module, step: int) -> dict[str, float]:
        """Measure the effective depths of a transformers model, and return the new row of `to_frame` as a dict.

        - model: the model being trained; every module keeps its train or eval mode
        - step: the training step, no earlier than in the previous call; measuring a step again replaces its row

        Runs `relative_contribution` and `logit_lens` without gradients. A missing depth is NaN, and `reason` says why.
        If a weight is not finite, the row is NaN.

        Raises ValueError for an earlier step or for sharded weights, and ModelError in the same cases as
        `load_model`.
        Cost: two forward passes per prompt, and the unembedding of every layer.
        """
        if not isinstance(model, nn.Module):
            raise ValueError(f"expected the transformers model that you are training, got a {type(model).__name__}")
        refuse_sharded(model)
        last = self._rows[-1]["step"] if self._rows else 0
        if step < last:
            raise ValueError(f"step must be at least {last}, got {step}")
        row = {"step": step, "loss": math.nan} | dict.fromkeys(METRICS, math.nan) | {"largest_kl": math.nan}
        with _as_it_was(model):
            try:
                if name := next((name for name, weight in model.named_parameters() if not weight.isfinite().all()), ""):
                    raise FloatingPointError(f"{name} is not finite")
                llm = load_model(model, self.tokenizer)
                results = relative_contribution(llm, self.prompts), logit_lens(llm, self.prompts)
            except FloatingPointError as error:
                row["reason"] = str(error)
            except ValueError as error:  # the model was measured before, so its weights are the reason
                if self._first:
                    raise
                row["reason"] = str(error)
            else:
                found = pd.concat([effective_depths(result) for result in results]).set_index("rule").reindex(METRICS)
                row |= found.ratio.astype(float).to_dict() | {"largest_kl": float(results[1]["res_kl_divs"].max())}
                row["loss"] = float(results[1]["loss"].nanmean())  # a prompt of one token has none
                row["reason"] = "; ".join(found.note[found.ratio.isna()].dropna().unique())
                row |= {f"kl_{l}": value for l, value in enumerate(results[1]["res_kl_divs"].tolist())}
        self._rows, self._first = [one for one in self._rows if one["step"] < step] + [row], False
        if self.path:
            writable_folder(self.path.parent, ValueError)  # somebody may have removed it since
            if self._written and self.path.is_file() and self.path.read_bytes() != self._written:
                taken, beside = self.path, (self.path.with_stem(f"{self.path.stem}-{n}") for n in count(2))
                self.path = next(path for path in beside if not path.exists())
                warn(f"{taken} is also written by something else; this log continues in {self.path}")
            content = self.to_frame().to_csv(index=False).encode()
            write_beside({self.path: content}, lambda there: there == self._written)
            self._written = content
        return row

    def _resume(self, path: Path, step: int) -> None:
        """Begin with the file's rows before this step; if it also has later ones, it is kept under a new name."""
        try:
            kinds: Any = defaultdict(lambda: float, step=int, reason=str)
            frame, written = pd.read_csv(path, float_precision="round_trip", dtype=kinds), path.read_bytes()
            names = ["step", "loss", *METRICS, "largest_kl", "reason", *frame.filter(regex=r"^kl_\d+$")]
            rows = frame.loc[frame.step < step, names].fillna({"reason": ""}).to_dict("records")
        except (OSError, ValueError, LookupError, AttributeError):  # there is none, or it is something else
            return
        self._rows = rows
        if rows and frame.step.max() <= step:
            self._written = written

    def to_frame(self) -> pd.DataFrame:
        """A DataFrame with one row per measurement.

        - step: as passed to `measure`
        - loss: the mean loss on the prompts, nats per token
        - cosine, kl, overlap: the ratios (layer + 1) / L; NaN without a depth
        - largest_kl: the lens's largest KL divergence over layers, nats
        - reason: why a depth is missing, or ""
        - kl_0, kl_1, …: the lens's KL divergence at each layer, nats
        """
        return pd.DataFrame(self._rows)

    @plt.rc_context(STYLE)  # pyright: ignore[reportCallIssue] (it decorates, too)
    def plot(self) -> Figure:
        """Draw the ratios of effective depth over steps, and below them the KL divergence of each layer.

        Raises ValueError before the first measurement.
        """
        frame = self.to_frame()
        if frame.empty:
            raise ValueError("nothing has been measured yet; call log.measure(model, step) first")
        figure = plt.figure(figsize=(5, 4.5), layout="constrained")
        above, below = figure.subplots(2, sharex=True)
        for name, colour, style in zip(METRICS, COLOURS, ("o-", "s--", "x:"), strict=False):  # seen where they coincide
            above.plot(frame.step, frame[name], style, color=colour, label=name, markerfacecolor="none")
        above.set(ylabel="Ratio (ED + 1) / L", ylim=(0, 1), title="Effective depth over training (gaps: no depth)")
        above.legend()
        kl = frame.filter(regex=r"^kl_\d+$")
        image = below.pcolormesh(frame.step, range(kl.shape[1]), kl.T.to_numpy(), shading="nearest", rasterized=True)
        below.set(xlabel="Step", ylabel="Layer index $l$")
        figure.colorbar(image, ax=below, label="KL(lens ‖ output), nats")
        return figure


class DepthCallback(TrainerCallback):
    """Measures effective depths while transformers' Trainer trains: Trainer(…, callbacks=[DepthCallback(prompts)]).

    - prompts: list of strings
    - every: steps between measurements; the first and the last step are measured too
    - tokenizer: by default the Trainer's own

    `callback.log` is a `DepthLog`, written to depth_log.csv in the Trainer's folder; a second callback's is
    depth_log-2.csv. When training is resumed from a checkpoint, the log begins with the rows of this file up to the
    checkpoint's step. Use the same prompts, and the callbacks in the same order. Each measurement also adds an entry to
    `trainer.state.log_history`: `step`, `prompts_loss` and, if there is such a depth, `depth_cosine`, `depth_kl` and
    `depth_overlap`.
    """

    @with_checked_kinds
    def __init__(
        self, prompts: Sequence[str], every: int = 50, tokenizer: PreTrainedTokenizerBase | None = None
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1 step, got {every!r}")
        if tokenizer is not None:
            check_kind(tokenizer)
        self.prompts, self.every, self.tokenizer = texts_of(prompts), every, tokenizer
        self.log: DepthLog | None = None
        self._measured = None  # the last measured step

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **trainer: Any
    ) -> None:
        tokenizer = self.tokenizer or trainer.get("processing_class")
        if tokenizer is None:
            raise ValueError(
                "DepthCallback needs a tokenizer; pass one to it, or processing_class=tokenizer to the Trainer"
            )
        n = vars(state)["depth_logs"] = vars(state).get("depth_logs", 0) + 1  # a Trainer may have several callbacks
        path = Path(args.output_dir or ".") / f"depth_log{f'-{n}' * (n > 1)}.csv"
        self._measured, self.log = None, DepthLog(self.prompts, tokenizer, path)
        if state.global_step and state.is_world_process_zero:
            self.log._resume(path, state.global_step)
        self._measure(state, trainer["model"])

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **trainer: Any
    ) -> None:
        if state.global_step % self.every == 0:
            self._measure(state, trainer["model"])

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **trainer: Any
    ) -> None:
        if control.should_training_stop:
            self._measure(state, trainer["model"])

    on_save = on_epoch_end

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **trainer: Any
    ) -> None:
        if not args.load_best_model_at_end:  # otherwise an earlier step's model may have been restored
            self._measure(state, trainer["model"])

    def _measure(self, state, model):
        refuse_sharded(model)  # on every rank, before any rank waits for the others
        measured, self._measured = self._measured, state.global_step
        if state.is_world_process_zero and measured != state.global_step:
            row = self.log.measure(model, state.global_step)
            known = {f"depth_{name}": row[name] for name in METRICS if not math.isnan(row[name])}
            state.log_history.append({"step": state.global_step, "prompts_loss": row["loss"], **known})


def refuse_sharded(model: nn.Module) -> None:
    """Raise ValueError for weights that are sharded over processes."""
    sharded = any(isinstance(weight, DTensor) or hasattr(weight, "ds_id") for weight in model.parameters())
    if sharded or any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise ValueError(
            "the weights are sharded (FSDP, ZeRO-3), and depth cannot be measured on a part of them; train with DDP, "
            "or run the probes on saved checkpoints"
        )


@contextmanager
def _as_it_was(model: nn.Module) -> Iterator[None]:
    """Restore the mode of every module, and the state of random numbers."""
    modes = {module: module.training for module in model.modules()}
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            for module, training in modes.items():
                module.training = training
