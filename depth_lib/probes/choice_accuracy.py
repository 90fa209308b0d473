"""How likely a model finds the endings of a text, as it is and with its blocks in other orders."""

import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from nnsight import TransformersModel

from ..data.choices import Choice
from ..data.orders import checked_order
from ..data.tokens import answer_span
from ..models.check import arch_to_change, verified_arch
from ..models.removal import order_without, stretch_of
from ..params import whole
from ..residual.arch import Arch
from ..residual.residual_stream import final_residual, inputs, skip_head
from ..residual.stream import Stream
from ..residual.unembedding import lens as unembed
from ..results.origin import with_origin
from ..results.result import Result
from ..session import run
from .block_orders import order_damage


@with_origin
def choice_accuracy(
    llm: TransformersModel,
    choices: Sequence[Choice],
    removed: tuple[int, int] | None = None,
    remote: bool | str = False,
    order: Sequence[int] | None = None,
    budget: int | None = None,
) -> Result:
    """How often a model scores the right ending highest, optionally with its blocks in a different order.

    >>> llm = dl.load_model("toy-4l")
    >>> dl.choice_accuracy(llm, [("5 + 7 = ", ["12", "13"], 0)])["log_probs"].shape
    torch.Size([1, 2])

    As in lm-evaluation-harness, acc compares Σ log p of the endings' tokens, given the context. acc_norm compares
    Σ log p / bytes of the ending (the harness divides by characters: the same for ASCII). `correct` uses acc_norm,
    because a plain sum penalises long endings.

    - llm: from `load_model`
    - choices: multiple-choice questions from `load_choices`, or a list of (context, endings, index of the right
      ending), all with E endings
    - removed: (s, n) leaves out blocks s..s + n − 1
    - remote, budget: as for `layer_effects`
    - order: the block numbers in the order in which they run

    Returns a dict of float32 tensors:

    - `log_probs` [C, E]: Σ log p in nats
    - `correct` [C]: 1 where acc_norm picks the right ending, else 0
    - `acc`, `acc_norm` [1]: the shares of right answers; `chance` [1]: 1 / E
    - `unchanged_correct` [C]: `correct` of the model as it is; only with removed or order

    See `dl.accuracy` for the interval, `dl.accuracy_change` for that of a change, and `dl.block_accuracy` for all
    blocks or several orders.
    Raises ValueError for an empty list of questions, for an ending that adds no tokens, and for block numbers outside
    0..L − 1.
    Source: Gao et al., lm-evaluation-harness (acc, acc_norm of HellaSwag).
    Cost: a forward pass per ending, and the passes of each order as for `block_orders`.
    """
    arch = verified_arch(llm) if removed is None and order is None else arch_to_change(llm)
    if removed:
        if order is not None:
            raise ValueError("pass only one of removed and order (an order may leave out blocks)")
        order = order_without(*stretch_of(removed, arch.n_layers), arch.n_layers)
    orders = [] if order is None else [checked_order(order, arch.n_layers)]
    log_probs, picked, right, _ = endings_scored(llm, arch, choices, orders, remote, budget)
    correct = (picked == right).float()
    by_sum = (log_probs[-1:].argmax(-1) == right).float()
    unchanged = {"unchanged_correct": correct[0]} if orders else {}
    found = {
        "log_probs": log_probs[-1],
        "correct": correct[-1],
        "acc": by_sum.mean(1),
        "acc_norm": correct[-1:].mean(1),
        "chance": torch.tensor([1 / log_probs.shape[-1]], dtype=torch.float32),
    }
    return Result("choice_accuracy", found | unchanged)


def checked_choices(choices: Any) -> list[Choice]:
    """The questions as a list; ValueError for anything else, and for different numbers of endings."""
    if isinstance(choices, str) or not isinstance(choices, Iterable):
        raise ValueError(f"choices must be a list, such as dl.load_choices(), got {type(choices).__name__}")
    given: list[Any] = list(choices)
    for k, choice in enumerate(given):
        match choice:
            case (str(), [*endings], right) if all(isinstance(one, str) for one in endings) and len({*endings}) > 1:
                if whole([right]) and right in range(len(endings)):
                    continue
                raise ValueError(
                    f"question {k} has {len(endings)} endings, but {reprlib.repr(right)} is not the index of one of "
                    f"them; use an integer from 0 to {len(endings) - 1}"
                )
        raise ValueError(
            f"question {k} is {reprlib.repr(choice)}; use (context, endings, index of the right ending), with at least "
            "two different endings"
        )
    if len({len(endings) for _, endings, _ in given}) > 1:
        raise ValueError(
            "not all questions have the same number of endings; run the probe separately for each number of endings"
        )
    return given


def endings_scored(
    llm: TransformersModel,
    arch: Arch,
    choices: Sequence[Choice],
    orders: list[list[int]],
    remote: bool | str,
    budget: int | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """For the model as it is and in each order: Σ log p of every ending [1 + K, C, E], and the ending that acc_norm
    picks [1 + K, C]. Also the right ending [C] and the number of tokens of each [C, E]."""
    if not (choices := checked_choices(choices)):
        raise ValueError("there are no multiple-choice questions; load some with dl.load_choices()")
    texts = [answer_span(llm, context, ending)[:2] for context, endings, _ in choices for ending in endings]
    how = {"remote": remote, "over": "texts", "gives": "P K: log_probs"}
    found = run(measure_endings, llm, arch, texts, orders, budget, **how)
    shape = len(choices), len(choices[0][1])
    log_probs = found["log_probs"].unflatten(0, shape).movedim(2, 0)  # [C, E, 1 + K] -> [1 + K, C, E]
    # without the space before an ending, as in lm-evaluation-harness, which divides by characters: the same for ASCII
    n_bytes = torch.tensor([[len(ending.lstrip(" ").encode()) for ending in endings] for _, endings, _ in choices])
    n_tokens = torch.tensor([len(places) for _, places in texts]).view(shape)
    # of the same ending twice, the first is picked, and is right
    right = torch.tensor([[*endings].index([*endings][int(number)]) for _, endings, number in choices])
    return log_probs, (log_probs / n_bytes).argmax(-1), right, n_tokens


def measure_endings(llm, arch, texts, orders, budget):
    """Σ log p of each text's ending, by the model as it is and by each of K orders of its blocks [len(texts), 1 + K].

    texts: (token ids, the places of the ending's tokens) each; orders: lists of block numbers; budget: tokens in one
    call of a block, or None.
    """
    sums = []
    for ids, ending in texts:
        predicting = tuple(place - 1 for place in ending)
        with torch.no_grad():
            with llm.trace(inputs(llm, arch, ids), use_cache=False):
                stream = Stream(llm, arch, ids, budget) if orders else None
                final = stream.h[-1] if orders else final_residual(llm, arch)[0].clone()
                log_p = unembed(llm, arch, final[[*predicting]]).log_softmax(-1)
                of_text = sum(log_p[k, ids[place]] for k, place in enumerate(ending)).cpu()[None]
                if orders:
                    _, _, losses, _ = order_damage(stream, orders, predicting)  # ‖y − ȳ‖₂, KL, loss, top token changes
                    of_text = torch.cat([of_text, of_text - losses.sum(-1)])
                else:
                    skip_head(llm, arch, final[None])
        sums.append(of_text)
    return {"log_probs": torch.stack(sums)}
