"""The effective depths of a result, or of a model on prompts beside the same architecture without training."""

import copy
import warnings
from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from nnsight import TransformersModel

from .effective_depth.tables import CONTROL
from .effective_depth.tables import effective_depths as of_result
from .models.load import in_memory
from .probes.logit_lens import logit_lens
from .probes.relative_contribution import relative_contribution

SEED = 0


def effective_depths(
    of: Mapping | TransformersModel, prompts: Sequence[str] | None = None, control: bool = False
) -> pd.DataFrame:
    """The effective depths of a probe's result, or of several {name: result}, or of a model on prompts.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> dl.effective_depths(dl.logit_lens(llm, prompts)).ratio.to_dict()
    {'kl': 0.5, 'overlap': 0.5}
    >>> dl.effective_depths(llm, prompts, control=True).ed.notna().groupby("model", sort=False).sum().to_dict()
    {'the model': 3, 'random weights, same architecture': 0}

    A row per rule that reads it, index metric; columns layers (L), ed (a layer; NA: none), low, high (its 95 % interval
    over prompts; NA: open), ratio (ED + 1) / L, ratio_low, ratio_high, note (why one is missing). Of several results,
    and with control, index model and metric; with control rows of the model, then of its architecture with weights as
    transformers initialises them (seed 0). ValueError for a result that no rule reads, a model without prompts, or a
    control of a result alone.
    Cost: of a result no forward pass; of a model two per prompt, and as many of its control.
    """
    if not isinstance(of, Mapping | TransformersModel):
        raise ValueError(
            'give a result, several by name ({"base": a, "tuned": b}), or a model of dl.load_model with its prompts.'
        )
    if isinstance(of, Mapping):
        if control or prompts is not None:
            raise ValueError("a control is measured on prompts: dl.effective_depths(llm, prompts, control=True).")
        if of and all(isinstance(one, Mapping) for one in of.values()):
            return pd.concat({name: of_result(one) for name, one in of.items()}, names=["model"])
        return of_result(of)
    prompts = [prompts] if isinstance(prompts, str) else list(() if prompts is None else prompts)
    if not prompts:
        raise ValueError("give the prompts too: dl.effective_depths(llm, prompts).")
    found = _measured(of, prompts)
    return (
        pd.concat({"the model": found, CONTROL: _measured(untrained(of), prompts)}, names=["model"])
        if control
        else found
    )


def _measured(llm, prompts):
    return pd.concat([of_result(probe(llm, prompts)) for probe in (relative_contribution, logit_lens)])


def untrained(llm: TransformersModel) -> TransformersModel:
    """A model of the same config and tokenizer, with weights as transformers initialises them, in float32."""
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(SEED)
        module = type(llm._module)(copy.deepcopy(llm._module.config)).float()
    return in_memory(module.requires_grad_(False), llm.tokenizer)
