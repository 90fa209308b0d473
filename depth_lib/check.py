"""check_model: refuse a model on which the probes' numbers would be silently wrong."""

import weakref

from .architectures import ArchitectureError, describe
from .probes.identities import identities
from .session import run

_SENTENCE = "The quick brown fox jumps over the lazy dog, and 28 more."
CHECKED = weakref.WeakKeyDictionary()  # model -> what check_model returned for it


def check_model(llm, remote=False):
    """Measure both identities on a short prompt, in the running model's own dtype; once per loaded model.

    Identity 1: h_{l+1} = h_l + a_l + m_l for every block and token (relative to ‖h_{l+1}‖). Identity 2: lens(h_L) =
    the model's own logits (relative to the largest). And whether the MLP reads what the family's row says: changing
    attention's contribution must change m in sequential blocks and must not in parallel ones.

    Returns {"identity_1", "identity_2": the largest errors, "tolerance"}: 1e-5, or 2 rounding units of a narrower
    dtype. Raises ArchitectureError naming what failed, by how much and where.
    """
    if llm not in CHECKED:
        arch = describe(llm)
        try:
            found = run(identities, llm, arch, check_ids(llm), remote=remote)
        except (RuntimeError, ValueError, IndexError) as error:
            raise ArchitectureError(
                f"{_name(llm)}: the identities could not be computed ({str(error).strip().splitlines()[-1]}); "
                "its row in depth_lib/architectures.py names modules that do not give hidden states."
            ) from error
        CHECKED[llm] = judge(llm, arch, found)
    return CHECKED[llm]


def check_ids(llm):
    """Two sequences of token ids of the same length, [2][T]: a sentence, and its tokens in reverse."""
    ids = llm.tokenizer(_SENTENCE)["input_ids"][: getattr(llm.config, "max_position_embeddings", None)]
    return [ids, ids[::-1]]


def judge(llm, arch, found):
    """The result of check_model from what `identities` measured; ArchitectureError if one fails."""
    tolerance = max(1e-5, 2 * found["eps"])
    identity_1, identity_2, mlp_change = found["identity_1"], float(found["identity_2"]), found["mlp_change"]
    worst = int(identity_1.argmax())
    where = f"{_name(llm)} ({llm.config.model_type}, {str(llm.dtype).removeprefix('torch.')})"
    advice = "The probes would be silently wrong; correct the family's row in depth_lib/architectures.py."
    if not identity_1[worst] <= tolerance:  # NaN fails too
        raise ArchitectureError(
            f"{where}: identity 1 fails: h + a + m differs from the output of block {worst} by "
            f"{identity_1[worst]:.1%} (tolerance {tolerance:.1e}). {advice}"
        )
    if not identity_2 <= tolerance:
        raise ArchitectureError(
            f"{where}: identity 2 fails: the lens at the last residual differs from the model's logits by "
            f"{identity_2:.1%} of the largest (tolerance {tolerance:.1e}). {advice}"
        )
    if mlp_change is not None and (float(mlp_change) <= tolerance) != arch["parallel"]:
        said, found_to_be = ("parallel", "sequential") if arch["parallel"] else ("sequential", "parallel")
        raise ArchitectureError(
            f"{where}: its row says {said} blocks, but they are {found_to_be}: changing attention's contribution "
            f"changes the MLP's by {float(mlp_change):.1%}. {advice}"
        )
    return {"identity_1": float(identity_1[worst]), "identity_2": identity_2, "tolerance": tolerance}


def _name(llm):
    return getattr(llm, "repo_id", None) or type(llm._module).__name__
