"""How likely a model finds the endings of a text, as it is and with its blocks in other orders."""

from collections.abc import Sequence

import torch
from nnsight import TransformersModel

from ..data.choices import Choice
from ..data.orders import checked_order, listed
from ..data.tokens import answer_span
from ..models.check import arch_to_change, verified_arch
from ..models.removal import order_without, stretch_of
from ..residual.residual_stream import inputs
from ..residual.stream import Stream
from ..residual.unembedding import lens
from ..session import run
from .block_orders import order_damage


def choice_accuracy(
    llm: TransformersModel,
    choices: Sequence[Choice],
    removed: tuple[int, int] | None = None,
    remote: bool | str = False,
    order: Sequence[int] | Sequence[Sequence[int]] | None = None,
    budget: int | None = None,
) -> dict[str, torch.Tensor]:
    """How often the likeliest ending of a text is the right one, with the blocks as they are or in another order.

    >>> llm = dl.load_model("toy-4l")
    >>> dl.choice_accuracy(llm, [("5 + 7 = ", ["12", "13"], 0)])["log_probs"].shape
    torch.Size([1, 2])

    An ending's score is Σ log p of its tokens, given the context. choices: from `load_choices`, or a list of (context,
    endings, number of the right one), all with the same number E of endings; removed: (s, n), without blocks
    s..s + n − 1; order: block numbers, or K lists of them; remote, budget: as for `layer_effects`. Returns float32
    `log_probs` [C, E], `correct` [C] (1 or 0) and `accuracy` [1], of K orders [K, C, E], [K, C] and [K]; with blocks
    removed or an order also `unchanged_correct` [C], of the model as it is. `dl.accuracy` has the interval,
    `dl.accuracy_change` that of the change between two results. Raises ValueError if there are no choices, an ending
    has no token, or there are no such blocks.
    Cost: a forward pass per ending, and with orders another and their passes, as for `block_orders`.
    """
    for k, (_, endings, right) in enumerate(choices):
        if isinstance(endings, str) or right not in range(len(endings)):
            raise ValueError(f"choice {k} has endings {endings!r} and right {right!r}; give a list and a number of it.")
    arch = verified_arch(llm) if removed is order is None else arch_to_change(llm)
    n_endings = {len(endings) for _, endings, _ in choices}
    if len(n_endings) != 1:
        raise ValueError("give choices with the same number of endings, for example dl.load_choices().")
    orders, several = _orders_of_choices(removed, order, arch.n_layers)
    texts = [answer_span(llm, context, ending)[:2] for context, endings, _ in choices for ending in endings]
    found = run(measure_endings, llm, arch, texts, orders, budget, remote=remote, over="texts", label="choices")
    log_probs = found["log_probs"].unflatten(0, (len(choices), *n_endings)).movedim(2, 0)  # [1 + K, C, E]
    correct = (log_probs.argmax(2) == torch.tensor([right for *_, right in choices])).float()
    unchanged = {"unchanged_correct": correct[0]} if orders else {}
    which = slice(1, None) if several else -1
    accuracy = correct[which].mean(-1)
    return {"log_probs": log_probs[which], "correct": correct[which], "accuracy": accuracy.reshape(-1)} | unchanged


def _orders_of_choices(removed, order, n_layers):
    """The orders that `choice_accuracy` is asked for, and whether it was given a list of several."""
    if removed:
        if order is not None:
            raise ValueError("give removed or order, not both: an order may lack blocks.")
        order = order_without(*stretch_of(removed), n_layers)
    order = listed(order)
    several = bool(order) and not isinstance(order[0], int)
    orders = order if several else [] if order is None else [order]
    return [checked_order(one, n_layers) for one in orders], several


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
                stream = Stream(llm, arch, ids, budget)
                log_p = lens(llm, arch, stream.h[-1][[*predicting]]).log_softmax(-1)
                of_text = sum(log_p[k, ids[place]] for k, place in enumerate(ending)).cpu()[None]
                if orders:
                    _, _, losses, _ = order_damage(stream, orders, predicting)
                    of_text = torch.cat([of_text, of_text - losses.sum(-1)])
        sums.append(of_text)
    return {"log_probs": torch.stack(sums)}
