"""Is the model that runs the one the probes are written for? What is asked of it, and the verdict."""

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import nnsight
import torch
from nnsight import TransformersModel

from ..probes.identities import N_TOKENS, identities, verified
from .discovery import Architecture
from .errors import ArchitectureError
from .families import describe, known

_SENTENCE = "The quick brown fox jumps over the lazy dog, and 28 more."
# What is slower without each shortcut.
SHORTCUTS = {
    "starts": "its blocks read more of earlier ones than the residual, so every pass begins at the first",
    "grows": "rows that join its batch on the way are not read as others, so every row begins at the first block",
    "packs": "it does not obey a 4-D mask, so suffixes share no sequence",
}


def check_call(llm: TransformersModel) -> tuple[Callable, dict]:
    """What measures the identities: (function, its arguments), for a session with this model."""
    return identities, {"arch": describe(llm), "ids": llm.tokenizer(_SENTENCE)["input_ids"][:N_TOKENS]}


def running(llm: TransformersModel) -> dict[str, str]:
    """What computes there, in plain words: dtype, kind of weights, attention implementation, device, torch. Travels."""
    model = llm._module
    weights = [(type(part).__name__, p) for part in model.modules() for p in part.parameters(recurse=False)]
    matrices = [(kind, str(p.dtype).replace("torch.", "")) for kind, p in weights if p.dim() > 1]
    kinds = sorted({kind for kind, _ in matrices if "mbedding" not in kind})
    floating = all(p.is_floating_point() and p.element_size() > 1 for _, p in weights)
    return {
        "dtype": str(model.dtype).replace("torch.", ""),
        "weights": ", ".join(kinds) + " of " + ", ".join(sorted({dtype for _, dtype in matrices})),
        "quantized": not floating or getattr(model.config, "quantization_config", None) is not None,
        "attention": getattr(model.config, "_attn_implementation", None),
        "device": weights[0][1].device.type,
        "torch": str(torch.__version__),
    }


def judge(llm: TransformersModel, measured: dict) -> None:
    """Keep what check_model returns, of what `identities` measured, and which shortcuts work; ArchitectureError if the
    model is not what was found."""
    record, arch = known(llm), describe(llm)
    tolerance = max(1e-5, measured["eps"] / 4)
    problem = _problem(arch, measured, tolerance, measured["eps"] ** 0.5)
    if problem:
        kind = f"{llm.config.model_type}, eps {measured['eps']:.1e}"
        raise ArchitectureError(
            f"{name_of(llm)} ({kind}): {problem}. What was found in it does not hold, and the probes would be silently "
            "wrong."
        )
    works = {name: verified(arch, measured)[name] for name in SHORTCUTS}
    for name in SHORTCUTS:
        if arch[name] and not works[name]:
            warnings.warn(f"{name_of(llm)}: {SHORTCUTS[name]}: slower.", stacklevel=4)
    record.found = replace(record.found, **works)
    identity_1, identity_2 = float(measured["identity_1"].max()), measured["identity_2"]
    record.checked = {"identity_1": identity_1, "identity_2": identity_2, "tolerance": tolerance}


def _problem(arch, measured, tolerance, limit):
    """What is not as it was found; "" if all is. limit: a change that rounding cannot explain."""
    identity_1, identity_2, some = measured["identity_1"], measured["identity_2"], 2 * measured["eps"]
    l = int(identity_1.argmax())
    if not identity_1[l] <= tolerance:  # NaN fails too
        return (
            f"identity 1 fails: what block {l} adds differs from a + m by {identity_1[l]:.1%} (tolerance "
            f"{tolerance:.1e})"
        )
    if not identity_2 <= max(tolerance, some):
        return (
            f"identity 2 fails: the lens at the last residual differs from the model's logits by {identity_2:.1%} of "
            f"the largest (tolerance {max(tolerance, some):.1e})"
        )
    if not measured["logit_scale"] <= tolerance:
        return f"identity 2 fails: the scale of the logits is off by {measured['logit_scale']:.1%}"
    if (measured["sees_later"] > limit).any():
        return "its tokens see later ones: it is an encoder, and the probes read decoders"
    for part, wrong, what in (
        ("attention", measured["attention_mixes"] <= some, "does not depend on earlier tokens"),
        # what reads a as well may mix tokens once more, as a short convolution after the MLP does
        ("mlp", (measured["mlp_mixes"] > limit) & ~(measured["mlp_change"] > limit), "depends on earlier tokens"),
    ):
        if wrong.any():
            l = int(wrong.int().argmax())
            names = ", ".join(path for path, *_ in arch["parts"][l][part])
            return f"in block {l} what was found to be the {part}'s ({names}) {what}"
    change = measured["mlp_change"]
    if ((change > limit) if arch["parallel"] else (change <= some)).any():
        order, true_order = ("parallel", "sequential") if arch["parallel"] else ("sequential", "parallel")
        return f"its blocks were found to be {order}, but they are {true_order} (the MLP's change: {change.max():.1%})"
    return ""


def check_here(llm: TransformersModel) -> None:
    """Measure the identities of a model whose weights are here. Raises ArchitectureError if one fails."""
    function, arguments = check_call(llm)
    try:
        with llm.session():
            measured = nnsight.save(function(llm, **arguments))
    except Exception as error:  # whatever the model raises
        raise not_computed(llm, error) from error
    judge(llm, measured)


def not_computed(llm: TransformersModel, error: Exception) -> ArchitectureError:
    problem = (str(error).strip() or type(error).__name__).splitlines()[-1]
    if "already ran past" in str(error):
        problem = "what was found to be the attention's runs after what was found to be the MLP's"
    quantized = getattr(llm.config, "quantization_config", None) is not None
    advice = "; load it with quantization=None" if isinstance(error, AssertionError) and quantized else ""
    return ArchitectureError(f"{name_of(llm)}: the identities could not be computed ({problem}){advice}.")


def report(llm: TransformersModel) -> str:
    """What was found in a model, how a prompt begins, and how far its identities are off once measured, in lines."""
    found, numbers = known(llm).found, known(llm).checked
    parts = Counter(in_words(found)).most_common()
    lines = [
        f"{name_of(llm)} ({llm.config.model_type})",
        f"blocks: {len(llm.blocks)}, {found.blocks}",
        *(f"h + a + m: {words} (blocks: {count})" for words, count in parts),
        *([f"order: {'parallel' if found.parallel else 'sequential'}"] if parts else []),
        f"logits: {' > '.join(found.tail)}; scale: {found.logit_scale}; soft-cap: {found.logit_softcap}",
        "probes: all" if found.parts else f"probes: those of whole blocks, what needs a and m is NaN ({found.missing})",
    ]
    first = llm.tokenizer.convert_ids_to_tokens(llm.tokenizer("The capital of France is")["input_ids"])[:4]
    lines.append(f"a prompt begins with: {' '.join(map(repr, first))}")
    if numbers:
        errors = f"identity 1: {numbers['identity_1']:.1e}, identity 2: {numbers['identity_2']:.1e}"
        lines.append(f"{errors} (tolerance: {numbers['tolerance']:.1e})")
    return "\n".join(lines)


def in_words(found: Architecture) -> list[str]:
    """What a and m of each block are made of."""
    after = ", all times one number" if found.rescales else ""
    return [
        f"a = {_sum(parts['attention'])}, m = {_sum(parts['mlp'])}{after}" for parts in found.parts or ()
    ]


def _sum(part):
    terms = []
    for path, scale, bias in part:
        terms.append(path if scale == 1 else f"{scale:.5g} {path}")
        terms += [bias] if bias else []
    return " + ".join(terms) or "0 (one mixer only)"


def name_of(llm: TransformersModel) -> str:
    return getattr(llm, "repo_id", None) or type(llm._module).__name__
