"""One training loop for every toy, seeded: the same recipe, machine and number of threads give the same weights."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerBase

END = "<|endoftext|>"  # after every text, so that the end of an answer is learnt
WARM_UP = 0.15  # share of the one-cycle schedule in which the rate rises
EVERY = 200  # steps between two printed losses


@dataclass(frozen=True)
class Recipe:
    """What decides on the weights: width of the data, length and rate of the training, and the weight of questions.

    question_weight: of a question's tokens in the loss, against 1 for its answer's: 1 is the loss on all tokens, 0 on
    answers only. text_every: every so many steps a row of plain text is read as well; 0 for never.
    """

    name: str
    seed: int
    steps: int
    peak_rate: float
    question_weight: float
    rows: int = 8
    width: int = 97  # tokens; four to five sums fill a row
    text_every: int = 0
    text_width: int = 640  # long, so that the positions of long prompts are trained


def packed_rows(
    draw: Callable[[], tuple[str, str]], tokenizer: PreTrainedTokenizerBase, rows: int, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """`rows` rows of drawn (question, answer) pairs one after the other, each row beginning with a whole question.

    Returns ids [rows, width] and which of them belong to an answer or end one, bool [rows, width]; the space between
    question and answer is the answer's.
    """

    def row() -> tuple[list[int], list[bool]]:
        ids, answering = [], []
        while len(ids) < width:
            question, answer = draw()
            asked = tokenizer(question.rstrip()).input_ids if question else []
            told = tokenizer(question[len(question.rstrip()) :] + answer + END).input_ids
            ids, answering = ids + asked + told, answering + [False] * len(asked) + [True] * len(told)
        return ids[:width], answering[:width]

    ids, answering = zip(*(row() for _ in range(rows)), strict=True)
    return torch.tensor(ids), torch.tensor(answering)


def weighted_loss(
    model: PreTrainedModel, ids: torch.Tensor, answering: torch.Tensor, question_weight: float
) -> torch.Tensor:
    """Mean cross-entropy in nats over ids [B, T], in which tokens that are not `answering` [B, T] weigh less."""
    device = next(model.parameters()).device
    ids, answering = ids.to(device), answering.to(device)
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    weights = torch.where(answering[:, 1:], 1.0, question_weight)
    losses = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum()


def train(
    recipe: Recipe,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    draw: Callable[[random.Random], tuple[str, str]],
    draw_text: Callable[[random.Random], str] | None = None,
) -> PreTrainedModel:
    """The model after the recipe's training, in evaluation mode; its blocks may be one module several times over.

    draw: one (question, answer) from a random generator; draw_text: one text, for the rows of `text_every`.
    """
    torch.manual_seed(recipe.seed)
    rng, model = random.Random(recipe.seed), model.train()
    optimizer, schedule = _optimizer(model, recipe)
    losses = []
    for step in range(1, recipe.steps + 1):
        batch = packed_rows(lambda: draw(rng), tokenizer, recipe.rows, recipe.width)
        loss = weighted_loss(model, *batch, recipe.question_weight)
        losses.append(loss.item())
        if recipe.text_every and step % recipe.text_every == 0:
            text, _ = packed_rows(lambda: ("", draw_text(rng)), tokenizer, 1, recipe.text_width)
            text = text.to(loss.device)
            loss = loss + model(input_ids=text, labels=text, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % EVERY == 0:
            print(f"{recipe.name}: step {step} of {recipe.steps}, loss {mean(losses[-EVERY:]):.3f}", flush=True)
    return model.eval()


def _optimizer(model, recipe: Recipe):
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.peak_rate, total_steps=recipe.steps, pct_start=WARM_UP, cycle_momentum=False
    )
    return optimizer, schedule
