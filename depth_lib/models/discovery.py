"""Where a causal language model keeps its residual stream and what adds to it, read off the graph of one pass.

The output of every module is marked, the model runs once, and autograd keeps how each tensor was made. The blocks are
the longest list of modules of which each reads what the one before returned. What leaves a block is followed back
through sums and numbers to what entered it: whatever was added on the way is an output of a module. The logits are
followed back to the last block in the same way. Of blocks that are alike only the first runs. No weights are needed: a
model on the meta device runs as well.

`probes/identities.py` then measures every block of the model that runs.
"""

import logging
import math
import re
from collections import Counter
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import FunctionCtx
from torch.autograd.graph import Node
from transformers import PreTrainedModel

from ..probes.residual_stream import hidden_states as first
from ..probes.residual_stream import with_hidden_states as with_first
from .errors import ArchitectureError

N_TOKENS = 8
# Of each module whose scaled outputs sum to a part: its path, the scale, and a parameter that is added, or None.
Addends = tuple[tuple[str, float, str | None], ...]
# Autograd's nodes whose output has the values of their input, in another shape, dtype or place.
RESHAPES = re.compile(
    "(UnsafeView|View|ReshapeAlias|Clone|ToCopy|Squeeze|Unsqueeze|Alias|Slice|Transpose|Permute|Expand)Backward.*"
)
# What an MLP and a token mixer are called, in a path or a class name; `identities` measures whether that is so.
_MLP = re.compile(r"(mlp|moe|ffn|feed_?forward|fc2|experts)\b|\w+(MLP|MoE)\b")
_MIXER = re.compile(r"attn|attention|mamba|mixer", re.IGNORECASE)


# without the traceback that fake tensors write of an error
_QUIET = mock.patch.object(logging.getLogger(FakeTensor.__module__), "disabled", True)


@dataclass(frozen=True)
class Architecture:
    """What was found in a model. Paths are those of `named_modules`, of parts from their block on."""

    blocks: str
    streams: tuple[int, ...]  # how many residual streams blocks hand on, () for one
    beside: int | None  # how many things blocks return in a tuple beside the residual; None: they return it alone
    tail: tuple[str, ...]  # the modules that make logits of the last residual: final norm, if any, to unembedding
    logit_scale: float
    logit_softcap: float | None
    parts: tuple[tuple[Addends, Addends], ...] | None = None  # a and m of each block; None: unknown
    missing: str = ""  # why there are no parts
    rescales: bool = False  # blocks multiply h + a + m by one number each
    parallel: bool = False  # the MLP reads h_l, as attention does
    starts: bool = False  # the pass may begin at any block: blocks read nothing but the residual from earlier ones
    grows: bool = False  # the batch may grow between blocks
    packs: bool = False  # positions and a 4-D mask may be given, so that suffixes can share one clean prefix
    in_place: tuple[str, ...] = ()  # modules in blocks whose outputs the block changes once they are there


@dataclass(frozen=True)
class Call:
    """How the first thing that a module reads was made, and the first that it returns (None: no tensor that was made);
    their shapes; and the others that it returns, None for a tensor alone."""

    path: str
    x: Node | None
    y: Node | None
    shapes: set[torch.Size]
    others: tuple | None


class Mark(torch.autograd.Function):
    """The identity, as a node of the graph that knows which module's output it is, and its place among all.

    The anchor requires a gradient, so that the graph is kept though no parameter does.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, anchor: Tensor, path: str, order: int) -> Tensor:
        ctx.path, ctx.order = path, order
        return x.clone()


def discover(model: PreTrainedModel, mode: AbstractContextManager) -> Architecture:
    """Read `model`, which is in evaluation mode. mode: a FakeTensorMode for one on the meta device, else an empty
    context. Raises ArchitectureError that says what is in the way."""
    exemplars = _exemplars(model)
    try:
        return _read(model, mode, exemplars, masked=True)
    except Exception:  # noqa: BLE001 (a mask or positions that are not known, a shape that does not fit)
        return _read(model, mode, exemplars, masked=False)


def _read(model, mode, exemplars, masked):
    """What one pass shows. masked: with positions and a 4-D mask."""
    logits, calls, mask, changed = _marked(model, mode, exemplars, masked)
    blocks = _blocks(model, calls)
    path = blocks[0].path.rpartition(".")[0]
    modules = [*model.get_submodule(path)]
    alike = [modules.index(exemplars.get(block, block)) for block in modules]
    found = _parts(model, blocks, alike)
    parts = found.get("parts", [None] * len(blocks))
    # where integers go that a block returns is not in the graph
    hides = any(isinstance(x, Tensor) and not x.is_floating_point() for block in blocks for x in block.others or ())
    starts = not hides and not any(_reads_back(path, *two) for two in pairwise(blocks))
    return Architecture(
        blocks=path,
        streams=tuple(*blocks[0].shapes)[2:-1],
        beside=None if blocks[0].others is None else len(blocks[0].others),
        **_tail(logits, blocks[-1].y, calls),
        **found,
        starts=starts,
        grows=starts and _grows(model, mode, exemplars, modules[0]),
        packs=masked and all(_obeys(mask, blocks[l], calls, parts[l]) for l in {*alike}),
        in_place=tuple(
            sorted({p.removeprefix(f"{path}.").partition(".")[2] for p in changed if p.startswith(path)} - {""})
        ),
    )


def _exemplars(model):
    """{block: the first block that adds the same parts in the same way} of the lists that are in no other."""
    exemplars, firsts = {}, {}
    for path, blocks in model.named_modules():
        for block in blocks if isinstance(blocks, nn.ModuleList) and not re.search(r"\.\d+\.", path) else ():
            # modules, sizes, settings and numbers
            settings = [
                {name: value for name, value in vars(module).items() if isinstance(value, bool | int | float | str)}
                | {"layer_idx": 0}
                | module._buffers
                for module in block.modules()
            ]
            exemplars[block] = firsts.setdefault(f"{path} {block} {settings}", block)
    return exemplars


def _run(model, mode, exemplars, masked=False):
    """The logits of a pass in which exemplars run, and other blocks return what they read, and the mask."""
    device, mask, encoding = model.get_input_embeddings().weight.device, None, {}
    with ExitStack() as stack, mode, _QUIET:
        returned = {block: [] for block in exemplars}
        for block, exemplar in exemplars.items():
            forward = partial(_forward, block.forward, returned[exemplar])
            stack.enter_context(mock.patch.object(block, "forward", forward))
        if masked:
            lowest = torch.finfo(model.dtype).min
            mask = torch.full((1, 1, N_TOKENS, N_TOKENS), lowest, dtype=model.dtype, device=device).triu(1)
            mask.requires_grad_()
            encoding = {"attention_mask": mask, "position_ids": torch.arange(N_TOKENS, device=device)[None]}
        ids = torch.zeros(1, N_TOKENS, dtype=torch.long, device=device)
        return model(input_ids=ids, use_cache=False, **encoding).logits, mask


def _forward(forward, returned, *args, **kwargs):
    """A block, or once one like it returned a residual what that returned, with what this one reads."""
    h = first((*args, *kwargs.values()))
    if returned:
        return with_first(returned[0], h)
    output = forward(*args, **kwargs)
    returned += [output] if getattr(first(output), "shape", None) == h.shape else []
    return output


def _marked(model, mode, exemplars, masked):
    """How the logits were made, {path: its calls} of all modules, whose outputs are marked, the mask, and the paths of
    those whose outputs are changed in place later."""
    anchor, order, entered, calls, marked = torch.zeros((), requires_grad=True), count(), [], {}, []

    def before(module, args, kwargs):
        x = first((*args, *kwargs.values(), None))
        entered.append((getattr(x, "grad_fn", None), getattr(x, "shape", None)))  # now, as some families add in place

    def after(path, module, args, output):
        y, others = first(output), tuple(output[1:]) if isinstance(output, tuple | list) else None
        if isinstance(y, Tensor) and y.is_floating_point():
            y = Mark.apply(y, anchor, path, next(order))
            marked.append((path, y, y._version))
        x, shape = entered.pop()
        call = Call(path, x, getattr(y, "grad_fn", None), {shape, getattr(y, "shape", None)}, others)
        calls.setdefault(path, []).append(call)
        return with_first(output, y)

    # biases that are added outside of a module are then seen in the graph
    vectors = [p for p in model.parameters() if p.dim() == 1 and p.is_floating_point() and not p.requires_grad]
    with ExitStack() as stack, torch.enable_grad():
        for vector in vectors:
            stack.callback(vector.requires_grad_().requires_grad_, False)
        for path, module in list(model.named_modules())[1:]:
            stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(partial(after, path)).remove)
        logits, mask = _run(model, mode, exemplars, masked)
    changed = {path for path, y, version in marked if y._version != version}
    return logits.grad_fn, calls, mask, changed


def _grows(model, mode, exemplars, block):
    """Whether a second row may join before the first block."""

    def widen(module, args, kwargs):
        rows, *more = args or kwargs.values()
        rows = torch.cat([rows, rows])
        return ((rows, *more), kwargs) if args else (args, {**kwargs, next(iter(kwargs)): rows})

    hook = block.register_forward_pre_hook(widen, with_kwargs=True)
    try:
        with torch.no_grad():
            _run(model, mode, exemplars)
    except Exception:  # noqa: BLE001 (a shape that does not fit)
        return False
    finally:
        hook.remove()
    return True


def _blocks(model, calls):
    """The calls of the blocks."""
    lists, problems = [(path, len(m)) for path, m in model.named_modules() if isinstance(m, nn.ModuleList)], []
    for path, n_blocks in sorted(lists, key=lambda item: -item[1]):
        blocks = [call for l in range(n_blocks) for call in calls.get(f"{path}.{l}", ())]
        shapes = set().union(*(block.shapes for block in blocks))
        if len(blocks) < n_blocks or len(shapes) != 1 or not all(block.x and block.y for block in blocks):
            continue
        breaks = [l for l, (block, then) in enumerate(pairwise(blocks), 1) if _plain(then.x) is not block.y]
        if len(blocks) > n_blocks:
            n_calls = f"{len(blocks) / n_blocks:g}"
            problems.append(f"the blocks of {path} run {n_calls} times in a pass, and are read where they run once")
        elif breaks:
            problems.append(f"what enters block {breaks[0]} of {path} is not what left the one before")
        elif shapes.pop()[:2] == (1, N_TOKENS):
            return blocks
    raise ArchitectureError(*problems[:1] or ["no list of its modules passes one residual stream on"])


def _makers(node):
    return [maker for maker, _ in node.next_functions]


def _plain(node):
    """The node whose values this one has."""
    while node is not None and RESHAPES.fullmatch(node.name()):
        node = _makers(node)[0]
    return node


def _terms(node, h):
    """{node: number} of which this node is the sum, where one is h, or else a module's output, if it can be.

    The number is NaN where only weights that are not here know it.
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
    elif name in ("MulBackward0", "DivBackward0") and makers.count(None) == len(makers) - 1:
        number = node._saved_other if makers[0] else node._saved_self
        if number is not None and number.numel() == 1:
            s = math.nan if number.is_meta or isinstance(number, FakeTensor) else number.item()
            s = s if name == "MulBackward0" else 1 / s
            return Counter({term: n * s for term, n in _terms(makers[0] or makers[1], h).items()})
    return Counter({node: 1.0})


def _tail(node, h, calls):
    """How the last residual h becomes the logits: through which modules, and how scaled and capped."""
    tail, scale, cap = [], 1.0, None
    while node is not h:
        (node, s), *others = _terms(node, h).items()
        scale *= s
        if hasattr(node, "path") and not others and abs(scale) > 0:
            tail.insert(0, node.path)
            node = _plain(calls[node.path][-1].x)
        elif node and node.name() == "TanhBackward0" and cap is None:
            (node,), cap, scale = _makers(node), scale, 1.0
        elif node is not h:
            break
    if node is not h or len(tail) > 3:
        raise ArchitectureError("identity 2: no three modules make its logits of the last residual")
    return {"tail": tuple(tail), "logit_scale": scale * (cap or 1.0), "logit_softcap": cap}


def _parts(model, blocks, alike):
    """What each block adds to the residual, by which modules, in which order."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    try:
        added = {l: _added(model, names, l, blocks[l]) for l in dict.fromkeys(alike)}
    except ArchitectureError as missing:
        return {"missing": str(missing)}
    parallel = set().union(*(orders for *_, orders in added.values()))
    if len(parallel) > 1:
        return {"missing": "in some of its blocks the MLP reads what attention added, in others not"}
    rescales = any(k != 1 for _, _, k, _ in added.values())
    return {"parts": tuple(added[l][:2] for l in alike), "rescales": rescales, "parallel": parallel == {True}}


def _added(model, names, l, block):
    """(a, m, the number that multiplies h, whether the MLP's modules are parallel to attention) of a block."""
    h, here = _plain(block.x), f"{block.path}."
    terms = _terms(block.y, h)
    k = terms.pop(h, 0)
    marks = sorted((term for term in terms if hasattr(term, "path")), key=lambda mark: mark.order)
    biases = [names[term.variable].removeprefix(here) for term in terms if hasattr(term, "variable")]
    if k == 0 or not 0 < len(marks) <= 3 or len(biases) > 1 or len(terms) > len(marks) + len(biases):
        raise ArchitectureError(f"what block {l} adds is no sum of three or fewer modules' outputs")
    a, m, parallel = [], [], set()
    for mark in marks:
        addend, scale = mark.path.removeprefix(here), terms[mark] / k
        name = f"{addend} {type(model.get_submodule(mark.path)).__name__}"
        reads = mark is not marks[0] and marks[0] in _behind(mark, h)
        of_mlp = bool(_MLP.search(name)) or (reads and not _MIXER.search(name))
        if m and not of_mlp:
            raise ArchitectureError(f"the modules that mix tokens in block {l} do not run before the others")
        if of_mlp and a:
            parallel.add(not reads)
        bias = next((bias for bias in biases if bias.startswith(f"{addend}.")), None)
        (m if of_mlp else a).append((addend, 1.0 if math.isnan(scale) else scale, bias))
    return tuple(a), tuple(m), k, parallel


def _behind(node, h):
    """The nodes that lead to this one, and itself, as far as what enters the block."""
    seen, left = set(), [node]
    while left:
        node = left.pop()
        if node is not None and node is not h and node not in seen:
            seen.add(node)
            left += _makers(node)
    return seen


def _reads_back(path, before, block):
    """Whether a block reads more of those up to the one before than the residual."""
    marks = [node for node in _behind(block.y, before.y) if hasattr(node, "path")]
    return any(mark.path.startswith(f"{path}.") and mark.order < before.y.order for mark in marks)


def _obeys(mask, block, calls, parts):
    """Whether each module of a block that mixes tokens depends on the mask, or the block where those are not known."""
    mixers = [calls[f"{block.path}.{addend}"][0] for addend, _, _ in parts[0]] if parts else [block]
    seen = [_behind(mixer.y, _plain(block.x)) for mixer in mixers]
    return all(any(getattr(node, "variable", None) is mask for node in nodes) for nodes in seen)
