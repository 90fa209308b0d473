"""Remove blocks that a model can do without, save the shorter model, and report the cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nnsight import TransformersModel

from .data.choices import Choice
from .data.orders import AT_MOST
from .data.tokens import texts_of
from .effective_depth.accuracy import accuracy, accuracy_change
from .effective_depth.removal import Removable, blocks_named, removable
from .files import path_of
from .models.removal import remove_blocks, save_model, stretch_of
from .probes.block_removal import block_removal
from .probes.choice_accuracy import checked_choices, choice_accuracy

_CARD = """---
base_model: {base}
tags: [pruned]
---
# {base} without {blocks}

{removable}. {accuracy}

The blocks were chosen with depth_lib's `block_removal`, using half of {prompts}; the loss was measured on the
other half. The model was not trained after the removal.

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model, tokenizer = (kind.from_pretrained("{folder}") for kind in (AutoModelForCausalLM, AutoTokenizer))
```
"""


@dataclass(frozen=True)
class Pruned:
    """The result of `prune`. Printing it shows the removed blocks, and the accuracy before and after.

    - removable: the removed blocks
    - model: the shorter model
    - accuracy: a sentence on the accuracy before and after, or "" without questions
    - base: the name of the original model
    - prompts: a description of the prompts that were used, such as "5 prompts"
    """

    removable: Removable
    model: TransformersModel
    accuracy: str
    base: str
    prompts: str

    def __repr__(self) -> str:
        return f"{self.removable}\n{self.accuracy}".strip()

    def save(self, folder: str | Path) -> Path:
        """Write a new folder that transformers reads, and return the path of its model card, README.md.

        Raises ValueError if the folder is not empty, or if the config cannot express which blocks run.
        """
        folder = path_of(folder)
        save_model(self.model, folder)
        card = _CARD.format(
            base=self.base,
            blocks=blocks_named(*stretch_of(self.removable, self.removable.n_layers)),
            removable=self.removable,
            accuracy=self.accuracy,
            prompts=self.prompts,
            folder=folder.name,
        )
        path = folder / "README.md"
        path.write_text(card, encoding="utf-8")
        return path


def prune(
    llm: TransformersModel, prompts: list[str], at_most: float = AT_MOST, choices: Sequence[Choice] = ()
) -> Pruned:
    """Remove as many consecutive blocks as possible at a cost of at most `at_most` nats per token.

    >>> llm = dl.load_model("toy-8l")
    >>> pruned = dl.prune(llm, dl.load_prompts("gsm8k", 3, source="embedded"), at_most=0.5)
    >>> len(pruned.model.blocks) + pruned.removable.n
    8

    - llm: from `load_model`
    - prompts: list of at least two strings; every second one is used to choose the blocks, the others to measure the
      loss
    - at_most: nats per token
    - choices: multiple-choice questions from `load_choices`, to compare the accuracy before and after

    Returns a Pruned, with `.model` and `.save(folder)`.

    Raises ValueError for a single prompt, or if no block can be removed at this cost.
    Cost: that of `block_removal`, and two forward passes per ending of the multiple-choice questions.
    """
    prompts, choices = texts_of(prompts), checked_choices(choices)
    if len(prompts) < 2:
        raise ValueError(
            "prune chooses blocks on some of the prompts and measures the loss on the others; use at least two prompts"
        )
    sizes = "refined" if at_most == AT_MOST else "all"  # "refined" is exact for the default only
    result = block_removal(llm, prompts, sizes=sizes)
    found = removable(result, at_most)
    if not found.n:
        raise ValueError(f"{found}" + "; allow more with at_most (--at-most)" * (not found.note))
    shorter = remove_blocks(llm, found)
    said = ""
    if choices:
        before, after = (choice_accuracy(one, choices) for one in (llm, shorter))
        change = accuracy_change(before, after)
        shares = [float(answers["acc_norm"]) for answers in (before, after)]
        points, low, high = (f"{100 * end:+.1f}" for end in (change.value, change.low, change.high))
        said = (
            f"Accuracy on {len(choices)} questions: {shares[0]:.1%} before the removal, {shares[1]:.1%} after "
            f"(chance: {float(before['chance']):.0%}). Change: {points} percentage points [{low}, {high}] (paired 95% "
            "confidence interval)."
        )
        if accuracy(before).low <= float(before["chance"]):
            said += (
                " The accuracy before is not significantly above chance, so these questions cannot reveal a drop in "
                "accuracy."
            )
    base, measured = getattr(llm.config, "_name_or_path", "") or "a model", len(result["removal_loss_by_prompt"])
    return Pruned(found, shorter, said, Path(base).name if Path(base).exists() else base, f"{measured} prompts")
