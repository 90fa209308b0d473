"""Checks a model's detected architecture on the running model."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import nnsight
import torch
from nnsight import TransformersModel
from torch import nn
from transformers import PreTrainedModel

from ..params import not_among, warn
from ..residual.arch import Arch
from ..residual.identities import N_TOKENS, identities, verified
from ..residual.residual_stream import READS_MORE
from .bare import differ, logits_of
from .errors import ArchitectureError, ModelError, overflow
from .families import architecture, describe, known, of_hooks

_ONE_AT_A_TIME = threading.RLock()  # nnsight runs one session in a process
_NAMES = ("_name_or_path", "transformers_version")  # in a config: they change no number
_CHANGED = "; it has changed since it was loaded: load it again, dl.load_model(llm._module, llm.tokenizer)"
_SENTENCE = "The quick brown fox jumps over the lazy dog, and 28 more."
# Why a shortcut is not used.
SHORTCUTS = {
    "can_skip_blocks": "its blocks read more of earlier ones than the residual: probes that change it are refused",
    "can_add_rows": "its blocks run on one row at a time: slower",
}


@contextmanager
def undisturbed() -> Iterator[None]:
    """In this block, no other session of this process runs, and the caller's inference mode and autocast are off.

    ValueError inside a trace or session of the caller's.
    """
    try:
        nnsight.save([])
    except ValueError:  # outside of them
        pass
    else:
        raise ValueError("probes open their own session; call them outside llm.trace() and llm.session()")
    cpu, cuda = (torch.autocast(kind, enabled=False) for kind in ("cpu", "cuda"))
    with _ONE_AT_A_TIME, torch.inference_mode(False), cpu, cuda:
        yield


def check_call(llm: TransformersModel) -> tuple[Callable, dict]:
    """The function that measures the identities, and its arguments, for a session with this model."""
    return identities, {"arch": describe(llm), "ids": _distinct_tokens(llm)}


def _distinct_tokens(llm):
    """N_TOKENS ordinary tokens of different embeddings: those of a sentence, then others that the model knows."""
    tokenizer, n_known = llm.tokenizer, llm.config.get_text_config().vocab_size
    special = {*tokenizer.all_special_ids} - {tokenizer.bos_token_id}
    ids = []
    with suppress(Exception):  # of a tokenizer that lacks some words
        ids = tokenizer(_SENTENCE)["input_ids"]
    found = [
        *dict.fromkeys(token for token in (*ids, *range(n_known)) if token < n_known and token not in special)
    ] or [0]
    if llm.dispatched:  # several tokens, such as new ones, may have the same embedding
        embed = llm._module.get_input_embeddings()
        rows = embed(torch.tensor(found[:99], device=llm._module.device)).flatten(1).tolist()
        found = [*dict(zip(map(tuple, rows), found, strict=False)).values()]
    return (found * N_TOKENS)[:N_TOKENS]


def verified_arch(llm: TransformersModel) -> Arch:
    """`describe(llm)` of a verified model.

    The identities are measured again if modules, hooks, `forward`s or the places of weights have changed.
    Raises ArchitectureError if they fail, or for modules in training mode.
    """
    record = known(llm)
    if llm.dispatched:
        path = next((path for path, module in llm._module.named_modules() if module.training), None)
        changed = record.state is not None and record.state != state_of(llm._module)
        if path is not None:
            remedy = _CHANGED if changed else "; call eval() on the model first, and train() afterwards"
            raise ArchitectureError(
                f"{f'its module {path}' if path else 'the model'} is in training mode, where dropout may change "
                f"every run{remedy}"
            )
        if changed:
            architecture(llm.config, llm._module)  # what it refuses before loading, it refuses after it
            check_here(llm)
    return describe(llm)


def arch_to_change(llm: TransformersModel, part: str = "layer", whole: str = "layer", name: str = "part") -> Arch:
    """`verified_arch`, for a probe that changes what blocks, or their attention or MLP, read or add.

    name: the argument in messages (see `not_among`), and `whole` its value for whole blocks. Raises ValueError for an
    unknown part, for one of a model that is read block by block, and for a model whose blocks pass on more than the
    residual.
    """
    if problem := not_among((whole, "attention", "mlp"), name, part):
        raise ValueError(problem)
    arch = verified_arch(llm)
    if not arch.can_skip_blocks:
        raise ValueError(READS_MORE)
    if part != whole and not arch.parts:
        raise ValueError("attention and MLP cannot be told apart in this model; use whole blocks")
    return arch


def state_of(model: PreTrainedModel) -> list:
    """All that a model's numbers depend on besides the values of its weights; equal lists mean that nothing was
    replaced.
    """
    hooks = (nn.modules.module._global_forward_hooks, nn.modules.module._global_forward_pre_hooks)
    n_layers = getattr(model.config.get_text_config(), "num_hidden_layers", None)  # of which forward runs that many
    state: list = [n_layers, *([*hook] for hook in hooks)]
    for module in model.modules():
        state.append((id(module), id(vars(module).get("forward")), *module._forward_hooks, *module._forward_pre_hooks))
    for weight in model.parameters():
        state.append((id(weight), weight.dtype, weight.device))
        if type(weight) is nn.Parameter:  # subclasses may share memory
            state.append(weight.data_ptr())
    return state


def model_hash(llm: TransformersModel) -> str:
    """16 hexadecimal digits of a hash of the config and of the modules' types; and of each weight's shape, dtype and
    about 1000 values. If quantised, on disk or on a server, the values do not count.
    """
    model = llm._module
    facts = [llm.config.to_dict() | dict.fromkeys(_NAMES), llm.config._attn_implementation]
    facts += [(path, type(module).__qualname__) for path, module in model.named_modules()]
    tensors = [tensor.detach() for tensor in (*model.parameters(), *model.buffers())]
    facts += [f"{tensor.dtype} {[*tensor.shape]}" for tensor in tensors]
    found = hashlib.sha256(json.dumps(facts, default=str, skipkeys=True).encode())
    plain = [t for t in tensors if type(t) in (nn.Parameter, torch.Tensor) and t.layout == torch.strided]
    plain = [t for t in plain if not (t.is_meta or t.is_complex())]
    if plain:  # an odd step reads all columns of a matrix in turn
        sample = [t.flatten()[:: t.numel() // 1024 | 1].to(plain[0].device, torch.float32) for t in plain]
        found.update(torch.cat(sample).cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def running(llm: TransformersModel) -> dict[str, str | bool | None]:
    """The running model's dtype, kind of weights, attention, device and torch version; runs on a server too."""
    model = llm._module
    weights = [(type(part).__name__, p) for part in model.modules() for p in part.parameters(recurse=False)]
    kinds = sorted({kind for kind, p in weights if p.dim() > 1 and "mbedding" not in kind})
    dtypes = sorted({str(p.dtype).replace("torch.", "") for _, p in weights if p.dim() > 1})
    floating = all(p.is_floating_point() and p.element_size() > 1 for _, p in weights)
    return {
        "dtype": str(model.dtype).replace("torch.", ""),
        "weights": ", ".join(kinds) + " of " + ", ".join(dtypes),
        "quantized": not floating or getattr(model.config, "quantization_config", None) is not None,
        "attention": getattr(model.config, "_attn_implementation", None),
        "device": weights[0][1].device.type,
        "torch": str(torch.__version__),
    }


def judge(llm: TransformersModel, measured: dict) -> dict:
    """Record what `identities` measured, drop the shortcuts that do not work, and return the result of `check_model`.

    Raises ArchitectureError if the detected architecture is wrong.
    """
    record, arch, eps, name = known(llm), describe(llm), measured["eps"], name_of(llm)
    if not measured["finite"]:
        raise ModelError(
            f"{name}: its logits are not finite in {str(llm.dtype).removeprefix('torch.')}: weights are NaN or "
            f"infinite, fix the checkpoint{overflow(llm.dtype)}"
        )
    tolerance, much = max(1e-5, eps / 4), eps**0.5  # changes above `much` are not rounding
    mixes, change = measured["mlp_mixes"], measured["mlp_change"]
    order, logits = "parallel" if arch.parallel else "sequential", max(tolerance, 2 * measured["eps_of_logits"])
    problems = {  # the measured value, and whether it is wrong; NaN is wrong in the first four
        "block {l} does not read the output of the block before: a hook or a replaced `forward` changes it": (
            measured["passes_on"],
            ~(measured["passes_on"] <= eps),
        ),
        "identity 1 fails: the contribution of block {l} differs from a + m": (
            measured["identity_1"],
            ~(measured["identity_1"] <= tolerance),
        ),
        "identity 2 fails: the lens at the last residual differs from the model's logits": (
            measured["identity_2"],
            ~(measured["identity_2"] <= logits),
        ),
        "identity 2 fails: the scale of the logits is off": (
            measured["logit_scale"],
            ~(measured["logit_scale"] <= tolerance),
        ),
        "the tokens of block {l} see later ones: it is an encoder, and the probes read decoders": (
            measured["sees_later"],
            measured["sees_later"] > much,
        ),
        "the attention found in block {l} does not depend on earlier tokens": (
            measured["attention_mixes"],
            measured["attention_mixes"] <= 2 * eps,
        ),
        # a module that reads a may mix tokens again, as a short convolution after the MLP
        "the MLP found in block {l} depends on earlier tokens": (mixes, (mixes > much) & ~(change > much)),
        f"the MLP found in block {{l}} is not {order} to attention": (
            change,
            change > much if arch.parallel else change <= 2 * eps,
        ),
    }
    for problem, (values, wrong) in problems.items():
        if wrong.any():
            l = int(wrong.int().argmax())
            report = "; probes would be silently wrong: please report the model"
            advice = _CHANGED if record.state else "; use a decoder" if "encoder" in problem else report
            raise ArchitectureError(
                f"{name} ({llm.config.model_type}, eps {eps:.1e}): {problem.format(l=l)} (it is {values[l]:.1e})"
                f"{of_hooks(llm._module) or advice}"
            )
    works = verified(arch, measured)
    for shortcut, why in SHORTCUTS.items():
        if getattr(arch, shortcut) and not getattr(works, shortcut):
            warn(f"{name}: {why}")
    record.found = record.found.but(**{shortcut: getattr(works, shortcut) for shortcut in SHORTCUTS})
    errors = {key: float(measured[key].max()) for key in ("identity_1", "identity_2")}
    record.checked = errors | {"tolerance": tolerance}
    return record.checked


def check_here(llm: TransformersModel) -> None:
    """Measure the identities of a local model, and compare its logits with those that probes read.

    Raises ArchitectureError if one of these fails.
    """
    try:
        with undisturbed(), torch.no_grad():
            function, arguments = check_call(llm)
            with llm.session():
                measured = nnsight.save(function(llm, **arguments))
            with llm.trace(arguments["ids"], use_cache=False):
                read = llm.output.logits.save()
            problem = differ(read, logits_of(llm._module, arguments["ids"]))
            problem = problem or _changes_embeddings(llm, arguments["ids"])
            noise = problem and differ(*(logits_of(llm._module, arguments["ids"]) for _ in range(2)))
    except Exception as error:  # models raise anything
        raise not_computed(llm, error) from error
    n_logits, vocabulary = read.shape[-1], llm.config.get_text_config().vocab_size
    if n_logits < vocabulary:
        raise ArchitectureError(
            f"{name_of(llm)}: its head returns {n_logits} numbers, not logits over its vocabulary of {vocabulary} "
            "tokens; load the model with its unembedding"
        )
    if not read.any():
        raise ModelError(
            f"{name_of(llm)}: its logits are all 0: its weights overflow or were not loaded; load them first"
        )
    if noise and measured["finite"]:
        raise ArchitectureError(
            f"{name_of(llm)}: two passes over the same tokens give different logits ({noise}): one of its modules adds "
            "noise, such as a dropout that ignores eval(); turn it off"
        )
    judge(llm, measured)
    if problem:  # nnsight does not see the model's own hooks and `forward`
        raise ArchitectureError(
            f"{name_of(llm)}: a hook or a replaced `forward` changes its logits: {problem}{of_hooks(llm._module)}"
        )
    known(llm).state = state_of(llm._module)


def _changes_embeddings(llm, ids):
    """How much hooks before the first block change the logits, or "". Their changes would count as embeddings."""
    hooks = llm._module.get_submodule(f"{known(llm).found.blocks}.0")._forward_pre_hooks
    kept = dict(hooks)
    if not kept:
        return ""
    with_hooks = logits_of(llm._module, ids)
    hooks.clear()
    try:
        return differ(with_hooks, logits_of(llm._module, ids))
    finally:
        hooks.update(kept)


def not_computed(llm: TransformersModel, error: Exception) -> ArchitectureError:
    problem = (str(error).strip() or type(error).__name__).splitlines()[-1]
    quantized = getattr(llm.config, "quantization_config", None) is not None
    advice = _CHANGED if known(llm).state else "; load it with quantization=None" if quantized else ""
    return ArchitectureError(f"{name_of(llm)}: the identities could not be computed ({problem}){advice}")


def name_of(llm: TransformersModel) -> str:
    """The name that load_model was given; for a model in memory, its config's name or its class."""
    return llm.config._name_or_path or getattr(llm, "repo_id", None) or type(llm._module).__name__
