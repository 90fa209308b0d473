"""Whether the best of several orders of blocks answers better than the model as it is."""

from collections.abc import Mapping
from dataclasses import dataclass

from .accuracy import accuracy_change
from .intervals import Estimate
from .rules import as_array


@dataclass(frozen=True, repr=False)
class BestOrder:
    """Order k, the best of n_orders on every second choice; change: that of its accuracy on the n other choices, with
    its paired 95 % interval. As text it is a sentence."""

    k: int
    n_orders: int
    change: Estimate
    n: int

    def __repr__(self) -> str:
        """What it changes, and whether that is a gain."""
        low, high = self.change.low, self.change.high
        verdict = "it gains" if low > 0 else "it loses" if high < 0 else "no gain is shown"
        return (
            f"Of {self.n_orders} orders number {self.k} is best on half of the choices; on the other {self.n} its "
            f"accuracy changes by {self.change.value:+.1%} [{low:+.1%}, {high:+.1%}]: {verdict}"
        )


def best_order(result: Mapping) -> BestOrder:
    """Which of several orders answers best, and whether it answers better than the model as it is.

    >>> llm, choices = dl.load_model("toy-4l"), dl.load_choices("hellaswag", 8, source="embedded")
    >>> dl.best_order(dl.choice_accuracy(llm, choices, order=dl.swaps(4))).n
    4

    result: what `choice_accuracy` returns of several orders. The best of many looks good by chance, so it is chosen on
    every second choice and measured on the others. ValueError for a result of one order, or of fewer than four choices.
    Cost: none.
    """
    correct, unchanged = as_array(result["correct"]), as_array(result.get("unchanged_correct", ()))
    if correct.ndim != 2 or len(correct) < 2 or len(unchanged) < 4:
        raise ValueError("give what dl.choice_accuracy(llm, choices, order=[…]) returns of several orders and choices.")
    k = int(correct[:, ::2].mean(1).argmax())
    before, after = ({"correct": answers[1::2]} for answers in (unchanged, correct[k]))
    return BestOrder(k, len(correct), accuracy_change(before, after), len(unchanged) // 2)
