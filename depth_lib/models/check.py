"""Is the model that runs the one the probes are written for? What is asked of it, and the verdict."""

import weakref
from collections import Counter
from collections.abc import Callable

import nnsight
import torch
from nnsight import TransformersModel

from ..probes.identities import identities
from .discovery import Architecture, ArchitectureError
from .families import FOUND, describe

_SENTENCE = "The quick brown fox jumps over the lazy dog, and 28 more."
CHECKED = weakref.WeakKeyDictionary()  # model -> what check_model returned for it
RUNNING = weakref.WeakKeyDictionary()  # model -> what `running` said of it where it ran last


def check_call(llm: TransformersModel) -> tuple[Callable, dict]:
    """What measures the identities: (function, its arguments), for a session with this model."""
    longest = getattr(llm.config.get_text_config(), "max_position_embeddings", None)
    ids = llm.tokenizer(_SENTENCE)["input_ids"][:longest]
    return identities, {"arch": describe(llm), "ids": [ids, ids[::-1]]}  # as one batch: the tokens, and reversed


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


def judge(llm: TransformersModel, measured: dict) -> dict:
    """The result of check_model from what `identities` measured; ArchitectureError if one fails."""
    arch, tolerance = describe(llm), max(1e-5, 2 * measured["eps"])
    identity_1, identity_2 = float(measured["identity_1"].max()), float(measured["identity_2"])
    mlp_change, problem = measured["mlp_change"], None
    if not identity_1 <= tolerance:  # NaN fails too
        problem = (
            f"identity 1 fails: h + a + m differs from the output of block {int(measured['identity_1'].argmax())} by "
            f"{identity_1:.1%} (tolerance {tolerance:.1e})"
        )
    elif not identity_2 <= tolerance:
        problem = (
            f"identity 2 fails: the lens at the last residual differs from the model's logits by {identity_2:.1%} of "
            f"the largest (tolerance {tolerance:.1e})"
        )
    elif mlp_change is not None and (float(mlp_change) <= tolerance) != arch["parallel"]:
        order, true_order = ("parallel", "sequential") if arch["parallel"] else ("sequential", "parallel")
        problem = (
            f"its blocks were found to be {order}, but they are {true_order}: changing attention's contribution "
            f"changes the MLP's by {float(mlp_change):.1%}"
        )
    if problem:
        kind = f"{llm.config.model_type}, {str(llm.dtype).removeprefix('torch.')}"
        raise ArchitectureError(
            f"{name_of(llm)} ({kind}): {problem}. What was found in it does not hold, and the probes would be silently "
            "wrong."
        )
    return {"identity_1": identity_1, "identity_2": identity_2, "tolerance": tolerance}


def check_here(llm: TransformersModel) -> None:
    """Measure the identities of a model whose weights are here. Raises ArchitectureError if one fails."""
    function, arguments = check_call(llm)
    measured = None
    try:
        with llm.session():
            measured = nnsight.save(function(llm, **arguments))
    except (RuntimeError, ValueError, IndexError, AttributeError) as error:
        raise not_computed(llm, error) from error
    CHECKED[llm] = judge(llm, measured)


def not_computed(llm: TransformersModel, error: Exception) -> ArchitectureError:
    reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
    return ArchitectureError(f"{name_of(llm)}: the identities could not be computed ({reason[0]}).")


def report(llm: TransformersModel) -> str:
    """What was found in a model, and how far its identities are off once they were measured, a line for each."""
    found, numbers = FOUND[llm], CHECKED.get(llm)
    parts = Counter(in_words(found)).most_common()
    lines = [
        f"{name_of(llm)} ({llm.config.model_type})",
        f"blocks: {len(llm.blocks)}, {found.blocks}",
        *(f"h + a + m: {words} (blocks: {count})" for words, count in parts),
        *([f"order: {'parallel' if found.parallel else 'sequential'}"] if parts else []),
        f"logits: {' > '.join(found.tail)}; scale: {found.logit_scale}; soft-cap: {found.logit_softcap}",
        "probes: all" if found.parts else f"probes: those of whole blocks, what needs a and m is NaN ({found.missing})",
    ]
    if numbers:
        errors = f"identity 1: {numbers['identity_1']:.1e}, identity 2: {numbers['identity_2']:.1e}"
        lines.append(f"{errors} (tolerance: {numbers['tolerance']:.1e})")
    return "\n".join(lines)


def in_words(found: Architecture) -> list[str]:
    """What a and m of each block are made of."""
    after = ", all times one number" if found.rescales else ""
    return [f"a = {_sum(a)}, m = {_sum(m)}{after}" for a, m in found.parts or ()]


def _sum(part):
    terms = []
    for path, scale, bias in part:
        terms.append(path if scale == 1 else f"{scale:.5g} {path}")
        terms += [bias] if bias else []
    return " + ".join(terms) or "0 (one mixer only)"


def name_of(llm: TransformersModel) -> str:
    return getattr(llm, "repo_id", None) or type(llm._module).__name__
