"""Finds a causal language model's architecture from the autograd graph of one forward pass.

Every module's output is marked, and the model runs once. The blocks are the longest list of modules in which each
reads the output of the one before. Each block's output is traced back, through sums and factors, to its
input: all other terms are outputs of modules. The logits are followed back to the last block in the same way.
Weights are not needed: a model on the meta device runs as well.
"""

import logging
import math
import re
from collections import Counter
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import pairwise
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import Node
from transformers import PreTrainedModel

from ..residual.arch import Arch
from ..residual.residual_stream import hidden_states, with_hidden_states
from .errors import ArchitectureError

N_TOKENS = 8
# Autograd's nodes that keep their input's values and change shape, dtype or place.
RESHAPES = re.compile(
    "(UnsafeView|View|ReshapeAlias|Clone|ToCopy|Squeeze|Unsqueeze|Alias|Slice|Transpose|Permute|Expand"
    "|BackwardHookFunction)Backward.*"
)
# Names of MLPs and token mixers, in paths or class names; `identities` then measures them.
_MLP = re.compile(r"(mlp|moe|ffn|feed_?forward|fc2|experts)\b|\w+(MLP|MoE)\b")
_MIXER = re.compile(r"attn|attention|mamba|mixer", re.IGNORECASE)
# Fake tensors log the traceback of every error.
_QUIET = mock.patch.object(logging.getLogger(FakeTensor.__module__), "disabled", True)


class Mark(torch.autograd.Function):
    """The identity, as an autograd node that records a module's call.

    It keeps the module's path, the number of the call, and the node of the first tensor that the module read. It also
    keeps the shape of the first output and the other outputs (None if there is one tensor only). The anchor
    requires a gradient, so the graph is kept although no parameter does.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, path: str, order: int, read: Node | None, others: tuple | None
    ) -> Tensor:
        ctx.path, ctx.order, ctx.read, ctx.shape, ctx.others = path, order, read, x.shape, others
        return x.clone()


def discover(model: PreTrainedModel, mode: AbstractContextManager) -> Arch:
    """The architecture of `model`, which is in evaluation mode.

    mode: a FakeTensorMode for a model on the meta device, else an empty context. Raises ArchitectureError with the
    reason, and any error of the model.
    """
    try:
        return _read(model, mode, 2)
    except Exception:  # noqa: BLE001 (a row that does not fit)
        return _read(model, mode, 1)


def _read(model, mode, n_rows):
    """The architecture from one pass, with this many rows from the first block on."""
    lists = [(path, len(part)) for path, part in model.named_modules() if isinstance(part, nn.ModuleList)]
    first = {f"{path}.0": n_rows for path, _ in lists if not re.search(r"\.\d+\.", path)}
    logits, calls, _held = _run(model, mode, first)  # older torch frees the nodes of tensors that are gone
    path, blocks = _blocks(lists, calls, n_rows)
    others = [block.others for block in blocks]
    # integers that a block returns leave no trace in the graph
    hides = any(isinstance(x, Tensor) and not x.is_floating_point() for of_block in others for x in of_block or ())
    starts = not hides and not any(_reads_back(path, *two) for two in pairwise(blocks))
    return Arch(
        blocks=path,
        n_layers=len(blocks),
        width=blocks[-1].shape[2:].numel(),
        streams=tuple(blocks[-1].shape[2:]),
        n_other_outputs=None if others[0] is None else len(others[0]),
        **_tail(logits.grad_fn, blocks[-1]),
        **_parts(model, blocks),
        can_skip_blocks=starts,
        can_add_rows=starts and n_rows > 1,
    )


def _run(model, mode, n_rows):
    """The logits, {path: the marks of its calls}, and each call's output with its mark.

    n_rows: {path of a module: how many rows it and what follows are given}.
    """
    anchor, calls, marks = torch.zeros((), requires_grad=True), {}, []

    def call(path, forward, *args, **kwargs):
        h = hidden_states((*args, *kwargs.values(), None))
        if n_rows.get(path, 1) > 1:
            h = torch.cat([h] * n_rows[path])
            args, kwargs = ((h, *args[1:]), kwargs) if args else (args, kwargs | {next(iter(kwargs)): h})
        read = getattr(h, "grad_fn", None)  # before the module adds in place
        output = forward(*args, **kwargs)
        y, others = hidden_states(output), tuple(output[1:]) if isinstance(output, tuple | list) else None
        if not isinstance(y, Tensor) or not y.is_floating_point():
            return output
        y = Mark.apply(y, anchor, path, len(marks), read, others)
        calls.setdefault(path, []).append(y.grad_fn)
        marks.append((y, y.grad_fn))
        return with_hidden_states(output, y)

    with ExitStack() as stack, mode, _QUIET, torch.inference_mode(False), torch.enable_grad():
        for weight in [p for p in model.parameters() if p.dim() < 2 and p.is_floating_point()]:
            stack.callback(weight.requires_grad_, weight.requires_grad)
            # biases added outside a module then show in the graph; single numbers do not
            weight.requires_grad_(weight.numel() > 1)
        for path, module in [*model.named_modules()][1:]:
            stack.enter_context(mock.patch.object(module, "forward", partial(call, path, module.forward)))
        ids = torch.zeros(1, N_TOKENS, dtype=torch.long, device=model.get_input_embeddings().weight.device)
        logits = model(input_ids=ids, use_cache=False).logits
    return logits, calls, marks


def _blocks(lists, calls, n_rows):
    """The path of the list of blocks, and the marks of their calls."""
    problem = "no list of its modules passes one residual stream on"
    for path, n_blocks in sorted(lists, key=lambda item: -item[1]):
        blocks = [mark for l in range(n_blocks) for mark in calls.get(f"{path}.{l}", [None])]
        if None in blocks or {mark.shape[:2] for mark in blocks} != {(n_rows, N_TOKENS)}:
            continue
        if len(blocks) > n_blocks:
            n = f"{len(blocks) / n_blocks:g}"
            problem = (
                f"it is looped, the blocks of {path} run {n} times; load it unrolled: "
                f"dl.load_model(dl.unroll(model, passes={n}), tokenizer)"
            )
        elif blocks[0].read and all(_plain(then.read) is block for block, then in pairwise(blocks)):
            return path, blocks
    raise ArchitectureError(problem)


def _makers(node):
    return [maker for maker, _ in node.next_functions]


def _plain(node):
    """The node that has the same values, without changes of shape, dtype or place."""
    while node is not None and RESHAPES.fullmatch(node.name()):
        node = _makers(node)[0]
    return node


def _terms(node, h):
    """{node: factor} of the sum that this node is: h, or outputs of modules where possible.

    The factor is NaN if it depends on weights that are on a server.
    """
    node = _plain(node)
    if node is None or node is h:
        return Counter({node: 1.0})
    name, makers = node.name(), _makers(node)
    if hasattr(node, "path"):
        inside = _terms(makers[0], h)
        inner, *others = inside
        passed_on = not others and hasattr(inner, "path") and not inner.path.startswith(f"{node.path}.")
        if h in inside or passed_on:
            return inside
    elif name == "AddBackward0":
        total = Counter()
        for maker in makers:
            total.update(_terms(maker, h))
        return total
    elif name in ("MulBackward0", "DivBackward0") and None in makers:
        number = node._saved_other if makers[0] else node._saved_self
        if number.numel() == 1:
            s = math.nan if number.is_meta or isinstance(number, FakeTensor) else number.item()
            s = s if name == "MulBackward0" else 1 / s
            return Counter({term: n * s for term, n in _terms(makers[0] or makers[1], h).items()})
    return Counter({node: 1.0})


def _tail(node, h):
    """The modules between the last residual stream h and the logits, with scale and cap."""
    tail, scale, cap = [], 1.0, None
    while (terms := _terms(node, h)) != {h: 1.0}:
        (node, s), *others = terms.items()
        scale *= s
        if hasattr(node, "path") and not others and abs(scale) > 0 and len(tail) < 3:
            tail.insert(0, node.path)
            node = node.read
        elif node and node.name() == "TanhBackward0" and cap is None:
            (node,), cap, scale = _makers(node), scale, 1.0
        else:
            raise ArchitectureError(
                "identity 2: no chain of up to three modules turns the last residual into the logits"
            )
    return {"tail": tuple(tail), "logit_scale": scale * (cap or 1.0), "logit_softcap": cap}


def _parts(model, blocks):
    """The modules that make up a and m of each block, and whether they run in parallel."""
    found = {"parts": None, "missing": "", "rescales": False, "parallel": False}
    try:
        parts, numbers, orders = zip(*(_added(model, block) for block in blocks), strict=True)
    except ArchitectureError as missing:
        return found | {"missing": str(missing)}
    parallel = set().union(*orders)
    if len(parallel) > 1:
        return found | {"missing": "in some of its blocks the MLP reads what attention added, in others not"}
    rescales = any(k != 1 for k in numbers)
    return found | {"parts": parts, "rescales": rescales, "parallel": parallel == {True}}


def _added(model, block):
    """The parts of a block, the factor of h, and whether the MLP is parallel to attention."""
    module, h, l = model.get_submodule(block.path), _plain(block.read), block.path.rpartition(".")[2]
    names, terms = {weight: name for name, weight in module.named_parameters()}, _terms(block, h)
    k = terms.pop(h, 0)
    marks = sorted((term for term in terms if hasattr(term, "path")), key=lambda mark: mark.order)
    biases = [names[term.variable] for term in terms if getattr(term, "variable", None) in names]
    if k == 0 or not 0 < len(marks) <= 3 or len(biases) > 1 or len(terms) > len(marks) + len(biases):
        raise ArchitectureError(f"the contribution of block {l} is not the sum of up to three modules' outputs")
    parts, parallel = {"attention": [], "mlp": []}, set()
    for mark in marks:
        path, scale = mark.path.removeprefix(f"{block.path}."), terms[mark] / k
        name = f"{path} {type(module.get_submodule(path)).__name__}"
        reads = mark is not marks[0] and marks[0] in _behind(mark, h)
        of_mlp = bool(_MLP.search(name)) or (reads and not _MIXER.search(name))
        if parts["mlp"] and not of_mlp:
            raise ArchitectureError(f"the modules that mix tokens in block {l} do not run before the others")
        if of_mlp and parts["attention"]:
            parallel.add(not reads)
        bias = next((bias for bias in biases if bias.startswith(f"{path}.")), None)
        parts["mlp" if of_mlp else "attention"].append((path, 1.0 if math.isnan(scale) else scale, bias))
    return parts, k, parallel


def _behind(node, h):
    """This node and all that lead to it, back to what enters the block."""
    seen, left = set(), [node]
    while left:
        node = left.pop()
        if node is not None and node is not h and node not in seen:
            seen.add(node)
            left += _makers(node)
    return seen


def _reads_back(path, before, block):
    """Whether a block reads more of earlier blocks than the residual stream."""
    marks = [node for node in _behind(block, before) if hasattr(node, "path")]
    return any(mark.path.startswith(f"{path}.") and mark.order < before.order for mark in marks)
