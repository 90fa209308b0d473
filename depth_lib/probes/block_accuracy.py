"""How many questions a model still answers with each block removed in turn, or with its blocks in other orders.

The obvious loop, with the scores of `choice_accuracy`:

    for each order:
        accuracy = share of questions whose highest Σ log p / bytes is the right ending's
        loss     = mean of (log p − log p of the order) / tokens, over the right endings
"""

from collections.abc import Sequence

import torch
from nnsight import TransformersModel

from ..data.choices import Choice
from ..data.orders import checked_orders
from ..models.check import arch_to_change
from ..models.removal import order_without
from ..results.means import paired_change
from ..results.origin import with_origin
from ..results.result import Result
from .choice_accuracy import endings_scored


@with_origin
def block_accuracy(
    llm: TransformersModel,
    choices: Sequence[Choice],
    orders: Sequence[Sequence[int]] | None = None,
    remote: bool | str = False,
    budget: int | None = None,
) -> Result:
    """The accuracy and the loss with each block removed in turn; the two can disagree about which blocks matter.

    >>> llm, choices = dl.load_model("toy-4l"), dl.load_choices("hellaswag", 8, source="embedded")
    >>> dl.block_accuracy(llm, choices)["accuracy"].shape
    torch.Size([4])

    - llm: from `load_model`
    - choices: as for `choice_accuracy`, scored by acc_norm
    - orders: K lists of block numbers. By default, each block is removed in turn, so K = L
    - remote, budget: as for `layer_effects`

    Returns a dict of float32 tensors:

    - `accuracy` [K]: the share of right answers; `unchanged_accuracy` [1]: that of the full model; `chance` [1]: 1 / E
    - `change`, `change_low`, `change_high` [K]: accuracy minus the unchanged one, with its 95% confidence interval over
      questions, which are paired (see `accuracy_change`)
    - `choice_loss` [K]: how much the loss on the right endings rises, nats per token, mean over questions
    - `correct_by_prompt` [C, K], `unchanged_correct` [C]: 1 for a right answer, else 0

    Raises ValueError in the same cases as `choice_accuracy`, and for an empty list of orders.
    Sources: 2605.14075; 2510.02091; 2602.01997 (arXiv), on importance by loss and by accuracy.
    Cost: one forward pass per ending, and about L / 2 more to remove each block in turn.
    """
    arch, of_layers = arch_to_change(llm), orders is None
    if of_layers:
        orders = [order_without(block, 1, arch.n_layers) for block in range(arch.n_layers)]
    orders = checked_orders(orders, arch.n_layers)
    # row 0: the model as it is; log_probs [1 + K, C, E], picked [1 + K, C], right [C], n_tokens [C, E]
    log_probs, picked, right, n_tokens = endings_scored(llm, arch, choices, orders, remote, budget)
    correct = (picked == right).float()
    of_right = (log_probs / n_tokens)[:, torch.arange(len(right)), right]
    gained = (correct[1:] > correct[0]).sum(1).tolist()
    lost = (correct[1:] < correct[0]).sum(1).tolist()
    changes = [paired_change(len(right), *pair) for pair in zip(gained, lost, strict=True)]  # (change, low, high) each
    ends = torch.tensor(changes, dtype=torch.float32).unbind(1)
    return Result(
        "block_accuracy",
        dict(zip(("change", "change_low", "change_high"), ends, strict=True))
        | {
            "accuracy": correct[1:].mean(1),
            "unchanged_accuracy": correct[:1].mean(1),
            "chance": torch.tensor([1 / log_probs.shape[-1]], dtype=torch.float32),
            "choice_loss": (of_right[0] - of_right[1:]).mean(1),
            "correct_by_prompt": correct[1:].T.contiguous(),
            "unchanged_correct": correct[0],
        },
        llm if of_layers else None,  # orders of one's own are not the layers
    )
