"""The effective depths of a result, or of a model on prompts beside the same architecture without training."""

import copy
import warnings
from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from nnsight import TransformersModel

from .effective_depth.tables import effective_depths as of_result
from .figures.grid import by_name
from .models.errors import ModelError
from .models.load import in_memory
from .probes.logit_lens import logit_lens
from .probes.relative_contribution import relative_contribution

SEED = 0
CONTROL = "random weights, same architecture"


def effective_depths(
    of: Mapping | TransformersModel,
    prompts: Sequence[str] | None = None,
    control: bool = False,
    remote: bool | str = False,
) -> pd.DataFrame:
    """The effective depths of one probe result, of several in a dict {name: result}, or of a model on prompts.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> dl.effective_depths(dl.logit_lens(llm, prompts)).ratio.to_dict()
    {'kl': 0.5, 'overlap': 0.5}
    >>> dl.effective_depths(llm, prompts, control=True).ed.notna().groupby("model", sort=False).sum().to_dict()
    {'the model': 3, 'random weights, same architecture': 0}

    - of: a result, several by name, or a model from `load_model`
    - prompts: list of strings, for a model
    - control: add the same architecture with random weights (as transformers initialises them, seed 0)
    - remote: as for the probes; cannot be combined with control

    Returns a DataFrame with a row per rule; for several results, or with a control, also per model:

    - layers: the number of blocks L
    - prompts: the number of prompts
    - ed: the effective depth, a layer; NA if there is none
    - low, high: the ends of its 95% confidence interval over prompts; NA if that end is unbounded or the interval is
      missing
    - ratio, ratio_low, ratio_high: (layer + 1) / L
    - note: why something is missing

    Raises ValueError for a result that no rule applies to, a model without prompts, or a result together with any other
    argument.
    Source: Hu et al. 2025 (arXiv 2512.14064), Table 1.
    Cost: none for a result; for a model two forward passes per prompt, and as many for its control.
    """
    if isinstance(of, Mapping):
        if control or remote or prompts is not None:
            raise ValueError(
                "prompts, control and remote need a model: dl.effective_depths(llm, prompts, control=True)"
            )
        found = {name: of_result(result).set_index("rule") for name, result in by_name(of).items()}
        return found[""] if [*found] == [""] else pd.concat(found, names=["model"])
    if not isinstance(of, TransformersModel):
        raise ValueError(
            'effective_depths expects a result, a dict of results ({"base": a, "tuned": b}) or a model and its '
            f"prompts, got {type(of).__name__}"
        )
    prompts = [prompts] if isinstance(prompts, str) else list(() if prompts is None else prompts)
    if not prompts:
        raise ValueError("pass the prompts too: dl.effective_depths(llm, prompts)")
    if control and remote:
        raise ValueError("control draws random weights on this machine; use only one of control and remote")
    models = {"the model": of} | ({CONTROL: untrained(of)} if control else {})
    found = {name: _measured(llm, prompts, remote=remote) for name, llm in models.items()}
    return pd.concat(found, names=["model"]) if control else found["the model"]


def _measured(llm, prompts, **how):
    results = [probe(llm, prompts, **how) for probe in (relative_contribution, logit_lens)]
    return pd.concat([of_result(result).set_index("rule") for result in results])


def untrained(llm: TransformersModel) -> TransformersModel:
    """A model of the same config and tokenizer, with weights as transformers initialises them, in float32."""
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(SEED)
        module = type(llm._module)(copy.deepcopy(llm._module.config)).float()
    control = in_memory(module.requires_grad_(False), llm.tokenizer)
    if len(control.blocks) != len(llm.blocks):
        raise ModelError(
            f"a model of this config has {len(control.blocks)} layers, but this one has {len(llm.blocks)}: correct "
            "config.num_hidden_layers"
        )
    return control
