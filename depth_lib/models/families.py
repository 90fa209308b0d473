"""Where each model family keeps its blocks, what those add to the residual stream, and how it finishes logits.

One row a family, keyed by `config.model_type`; `describe(config)` resolves it against one model's config. The names in
a row become nnsight aliases, so probes read `llm.blocks[l]`, `.attention_contribution`, `.mlp_contribution`,
`llm.ln_final` and `llm.unembed` on every family.
"""

from __future__ import annotations

import difflib
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch and nnsight take seconds
    from nnsight import TransformersModel
    from torch.nn import Module
    from transformers import PreTrainedConfig

_ROWS = weakref.WeakKeyDictionary()  # models of an unknown family, with the row that was found to fit


class ArchitectureError(ValueError):
    """The model's family is not known, or the model does not satisfy the identities that every probe relies on."""


# What most families do: sequential pre-norm blocks whose attention and MLP outputs are added as they are.
_PRE_NORM = {
    "blocks": "model.layers",
    "attention": "self_attn",  # module whose output is what attention adds (first element, if it returns a tuple)
    "mlp": "mlp",  # the same for the MLP
    "ln_final": "model.norm",
    "project_out": None,  # module between final norm and unembedding, where a checkpoint has one
    "unembed": "lm_head",
    "parallel": False,  # True, or the config attributes of which one says so: attention and MLP both read h_l
    "residual_scale": None,  # config attribute that multiplies both contributions
    "logit_scale": None,  # config attribute that multiplies the logits
    "logit_divisor": None,  # config attribute that divides the logits
    "logit_softcap": None,  # config attribute c of c · tanh(logits / c)
    "tuple_blocks": False,  # blocks return (hidden states, …)
    "grows": True,  # the batch may grow between blocks (no per-row tensor computed before them)
    "packs": True,  # positions and a 4-D mask may be given, so that suffixes can share one clean prefix
    "odd": "Nothing: a_l and m_l are the outputs of the two modules.",
}


def _row(odd=None, **differences):
    return {**_PRE_NORM, **differences, **({"odd": odd} if odd else {})}


_POST_NORM = {"attention": "post_attention_layernorm", "mlp": "post_feedforward_layernorm"}
_GPT = {"blocks": "transformer.h", "attention": "attn", "ln_final": "transformer.ln_f"}

FAMILIES = {
    "llama": _row(),
    "mistral": _row("Sliding-window attention in some checkpoints: a packed sequence must fit into the window."),
    "qwen2": _row(),
    "qwen3": _row("Queries and keys are normalised, which the residual stream does not see."),
    "mixtral": _row("The MLP contribution is the whole mixture of experts."),
    "qwen3_moe": _row("The MLP contribution is the whole mixture of experts; some blocks may have a plain MLP."),
    "gpt_oss": _row("The mixture of experts returns (output, router scores); every other layer has a sliding window."),
    "olmo2": _row("Norms stand behind attention and MLP: what is added are the outputs of the norms.", **_POST_NORM),
    "olmo3": _row("As OLMo 2, with sliding-window layers.", **_POST_NORM),
    "gemma2": _row(
        "Norms before and behind attention and MLP, the latter's outputs are added; logits are soft-capped.",
        **_POST_NORM,
        logit_softcap="final_logit_softcapping",
    ),
    "gemma3_text": _row(
        "As Gemma 2, most checkpoints without a soft-cap.", **_POST_NORM, logit_softcap="final_logit_softcapping"
    ),
    "glm4": _row(
        "As Gemma 2 with other names: post_attention_layernorm is the norm before the MLP.",
        attention="post_self_attn_layernorm",
        mlp="post_mlp_layernorm",
    ),
    "gpt2": _row("Other names, learned positions, LayerNorm with bias.", **_GPT),
    "gptj": _row(
        "Parallel: attention and MLP read one norm; the unembedding has a bias.",
        **_GPT,
        parallel=True,
        tuple_blocks=True,
    ),
    "gpt_neox": _row(
        "Parallel in most checkpoints (Pythia): attention and MLP read h_l through two norms.",
        blocks="gpt_neox.layers",
        attention="attention",
        ln_final="gpt_neox.final_layer_norm",
        parallel=("use_parallel_residual",),
    ),
    "phi": _row("Parallel; the unembedding has a bias.", ln_final="model.final_layernorm", parallel=True),
    "phi3": _row("Fused projections; some checkpoints have a sliding window."),
    "cohere": _row("Parallel; logits are multiplied by logit_scale.", parallel=True, logit_scale="logit_scale"),
    "granite": _row(
        "Both contributions are multiplied by residual_multiplier, logits divided by logits_scaling.",
        residual_scale="residual_multiplier",
        logit_divisor="logits_scaling",
    ),
    "falcon": _row(
        "Parallel unless parallel_attn is off; the block adds into the MLP's output in place; ALiBi is built per row.",
        **{**_GPT, "attention": "self_attention"},
        parallel=("new_decoder_architecture", "parallel_attn"),
        tuple_blocks=True,
        grows=False,
        packs=False,
    ),
    "bloom": _row(
        "Attention and MLP are handed the residual and return the sum: only their last projections are what is added.",
        **{**_GPT, "attention": "self_attention.dense", "mlp": "mlp.dense_4h_to_h"},
        tuple_blocks=True,
        grows=False,
        packs=False,
    ),
    "opt": _row(
        "No MLP module: fc2 is what is added, as [tokens, d]; small checkpoints project before the unembedding.",
        blocks="model.decoder.layers",
        mlp="fc2",
        ln_final="model.decoder.final_layer_norm",
        project_out="model.decoder.project_out",
    ),
    "stablelm": _row("Parallel in some checkpoints.", parallel=("use_parallel_residual",)),
}


def family(config: PreTrainedConfig) -> dict:
    """The row of a model's family, by `config.model_type`.

    Raises ArchitectureError naming the nearest known families.
    """
    row = FAMILIES.get(config.model_type)
    if row is None:
        raise ArchitectureError(unknown(config))
    return row


def unknown(config: PreTrainedConfig, tried: Iterable[str] = ()) -> str:
    """The sentence for a family without a row."""
    near = difflib.get_close_matches(config.model_type, FAMILIES, n=3) or sorted(FAMILIES)
    outcome = f"; read like {', '.join(tried)} the identities fail" if tried else ""
    return (
        f"model family {config.model_type!r} is not known{outcome}. Known families like it: {', '.join(near)}. To add "
        "it, write one row in FAMILIES of depth_lib/models/families.py and prove it with dl.check_model(llm)."
    )


def candidates(module: Module) -> list[tuple[str, dict]]:
    """(family name, row) for every distinct row whose modules `module`, a transformers model, has."""
    fitting = {}
    for name, row in FAMILIES.items():
        try:
            block = module.get_submodule(row["blocks"])[0]
            for owner, path in ((block, "attention"), (block, "mlp"), (module, "ln_final"), (module, "unembed")):
                owner.get_submodule(row[path])
        except (AttributeError, TypeError):
            continue
        if {**row, "odd": ""} not in [{**other, "odd": ""} for other in fitting.values()]:
            fitting[name] = row
    return fitting.items()


def adopt(llm: TransformersModel, row: dict) -> None:
    """Read `llm`, whose family has no row of its own, by `row` from now on: without the fast paths, which are proven
    family by family."""
    _ROWS[llm] = {**row, "grows": False, "packs": False}


def aliases(row: dict) -> dict[str, str]:
    """nnsight's `rename` dictionary that gives a family the common names; none for an empty row."""
    common = {
        "blocks": "blocks",
        "ln_final": "ln_final",
        "project_out": "project_out",
        "unembed": "unembed",
        "attention": "attention_contribution",
        "mlp": "mlp_contribution",
    }
    return {row[key]: alias for key, alias in common.items() if row.get(key) not in (None, alias)}


def describe(llm: TransformersModel) -> dict:
    """The facts about `llm` that probes need, as a plain dict that is small enough to travel with every request.

    Keys: n_layers, width (d), parallel, residual_scale, logit_scale, logit_softcap (None: none), project_out,
    tuple_blocks, grows, packs, window (tokens a sliding-window layer sees; None: all) and cuts (whether tokens are
    computed alike in a sequence that ends earlier: not where rotary frequencies change with its length).
    """
    row = _ROWS.get(llm) or family(llm.config)
    for name in ("blocks", "ln_final", "unembed"):
        if not hasattr(llm, name):
            raise ArchitectureError(
                f"{getattr(llm, 'repo_id', 'this model')!r} has no {name}: a {llm.config.model_type} checkpoint "
                f"without {row[name]} is not supported, nor a model that dl.load_model(...) did not load."
            )
    if llm._module.training and not any(weight.is_meta for weight in llm._module.parameters()):
        raise ArchitectureError("the model is in training mode, where dropout changes every run; call llm.eval().")
    config, parallel = llm.config, row["parallel"]
    return {
        "n_layers": config.num_hidden_layers,
        "width": config.hidden_size,
        "parallel": parallel is True or any(getattr(config, name) for name in parallel or ()),
        "residual_scale": _number(config, row["residual_scale"], 1.0),
        "project_out": hasattr(llm, "project_out"),
        "logit_scale": _number(config, row["logit_scale"], 1.0) / _number(config, row["logit_divisor"], 1.0),
        "logit_softcap": _number(config, row["logit_softcap"], None),
        "tuple_blocks": row["tuple_blocks"],
        "grows": row["grows"],
        "packs": row["packs"],
        "window": _window(config),
        "cuts": _rope_type(config) not in ("longrope", "dynamic"),
    }


def _rope_type(config):
    rope = getattr(config, "rope_parameters", None) or {}
    return rope.get("rope_type", "default")


def _number(config, attribute, default):
    value = getattr(config, attribute, None) if attribute else None
    return default if value is None else float(value)


def _window(config):
    """Tokens that the narrowest attention layer sees, or None when every layer sees all."""
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None and "sliding_attention" not in layer_types:
        return None
    if getattr(config, "use_sliding_window", True) is False:
        return None
    return getattr(config, "sliding_window", None)
