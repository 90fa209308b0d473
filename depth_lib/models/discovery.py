"""Where a causal language model keeps its residual stream and what adds to it, read off the graph of one pass.

The output of every module is marked, the model runs once, and autograd keeps how each tensor was made. The blocks are
the longest list of modules of which each reads what the one before returned. What leaves a block is followed back
through sums and numbers to what entered it: whatever was added on the way is an output of a module. The logits are
followed back to the last block in the same way. No weights are needed: a model on the meta device runs as well.

`probes/identities.py` then measures on the model that runs whether this is so.
"""

import logging
import re
from collections import Counter
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import count, pairwise

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import FunctionCtx
from torch.autograd.graph import Node
from transformers import PreTrainedModel

from ..probes.residual_stream import first, with_first
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


@dataclass(frozen=True)
class Architecture:
    """What was found in a model. Paths are those of `named_modules`, of parts from their block on."""

    blocks: str
    streams: tuple[int, ...]  # how many residual streams blocks hand on, () for one
    beside: int  # how many things blocks return beside the residual
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


@dataclass(frozen=True)
class Value:
    """A tensor that a module reads or returns: how it was made, and its shape."""

    node: Node
    shape: torch.Size


@dataclass(frozen=True)
class Call:
    """What a module reads first and returns first (None: no tensor that was made), and how many more it returns."""

    x: Value | None
    y: Value | None
    beside: int
    hides: bool  # whether it returns integers, whose further way the graph does not show, or a list of one tensor


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
    with mode:
        logits, calls = _run(model)
    path, blocks = _blocks(model, calls)
    parts = _parts(model, path, blocks)
    with mode, _quiet():
        grows = _grows(model, f"{path}.{len(blocks) // 2}")
        packs = _packs(model, path, parts.get("parts") or [()] * len(blocks))
    starts = not any(block.hides for block in blocks) and not any(_reads_back(path, *two) for two in pairwise(blocks))
    return Architecture(
        blocks=path,
        streams=tuple(blocks[0].x.shape[2:-1]),
        beside=blocks[0].beside,
        **_tail(logits, blocks[-1].y.node, calls),
        **parts,
        starts=starts,
        grows=grows and starts,
        packs=packs,
    )


@contextmanager
def _quiet():
    """Without the traceback that fake tensors write of an error."""
    log = logging.getLogger(FakeTensor.__module__)
    log.disabled, before = True, log.disabled
    try:
        yield
    finally:
        log.disabled = before


def _run(model, **encoding):
    """How the logits were made, and {path: its calls} of all modules; their outputs are marked."""
    anchor, order, entered, calls = torch.zeros((), requires_grad=True), count(), [], {}

    def before(module, args, kwargs):
        entered.append(_value(first((*args, *kwargs.values(), None))))  # now, as some families add in place

    def after(path, module, args, output):
        y, more = first(output), output[1:] if isinstance(output, tuple | list) else ()
        if isinstance(y, Tensor) and y.is_floating_point():
            y = Mark.apply(y, anchor, path, next(order))
        hides = any(isinstance(x, Tensor) and not x.is_floating_point() for x in more)
        hides |= isinstance(output, tuple | list) and not more
        calls.setdefault(path, []).append(Call(entered.pop(), _value(y), len(more), hides))
        return with_first(output, y)

    # biases that are added outside of a module are then seen in the graph
    vectors = [p for p in model.parameters() if p.dim() == 1 and p.is_floating_point() and not p.requires_grad]
    with ExitStack() as stack, torch.enable_grad():
        for vector in vectors:
            stack.callback(vector.requires_grad_().requires_grad_, False)
        for path, module in list(model.named_modules())[1:]:
            stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(partial(after, path)).remove)
        return model(input_ids=_ids(model), use_cache=False, **encoding).logits.grad_fn, calls


def _ids(model):
    return torch.zeros(1, N_TOKENS, dtype=torch.long, device=model.get_input_embeddings().weight.device)


def _value(x):
    return Value(x.grad_fn, x.shape) if isinstance(x, Tensor) and x.grad_fn else None


def _blocks(model, calls):
    """The path of the list of blocks, and the blocks' calls."""
    lists, problem = [(path, len(m)) for path, m in model.named_modules() if isinstance(m, nn.ModuleList)], ""
    for path, n_blocks in sorted(lists, key=lambda item: -item[1]):
        blocks = sum((calls.get(f"{path}.{l}", []) for l in range(n_blocks)), [])
        values = [value for block in blocks for value in (block.x, block.y) if value]
        shapes = {value.shape for value in values}
        if len(values) != 2 * len(blocks) or len(shapes) != 1 or len(blocks) < n_blocks:
            continue
        if len(blocks) > n_blocks:
            n_calls = len(blocks) / n_blocks
            problem = (
                problem or f"the blocks of {path} run {n_calls:g} times in a pass, and are read where they run once"
            )
            continue
        breaks = [l for l, (block, then) in enumerate(pairwise(blocks)) if _plain(then.x.node) is not block.y.node]
        if not breaks and shapes.pop()[:2] == (1, N_TOKENS):
            return path, blocks
        problem = problem or (breaks and f"what enters block {breaks[0] + 1} of {path} is not what left the one before")
    raise ArchitectureError(problem or "no list of its modules passes one residual stream on")


def _makers(node):
    return [maker for maker, _ in node.next_functions]


def _plain(node):
    """The node whose values this one has."""
    while node is not None and RESHAPES.fullmatch(node.name()):
        node = _makers(node)[0]
    return node


def _terms(node, h):
    """{node: number} of which this node is the sum, where one is h, or else a module's output, if it can be.

    The number is None where only weights that are not here know it.
    """
    node = _plain(node)
    if node is None or node is h:
        return {node: Fraction(1)}
    makers = _makers(node)
    if hasattr(node, "path"):
        inside = _terms(makers[0], h)
        inner, *others = inside
        passed_on = not others and hasattr(inner, "path") and not inner.path.startswith(f"{node.path}.")
        return inside if h in inside or passed_on else {node: Fraction(1)}
    if node.name() in ("MulBackward0", "DivBackward0") and makers.count(None) == len(makers) - 1:
        scaled, number = makers[0] or makers[1], node._saved_other if makers[0] else node._saved_self
        if number is not None and number.numel() == 1:
            inverse = node.name() == "DivBackward0"
            return {term: _product(s, _number(number), inverse) for term, s in _terms(scaled, h).items()}
    if node.name() == "AddBackward0":
        total = Counter()
        for maker in makers:
            for term, s in _terms(maker, h).items():
                total[term] = None if s is None else total[term] + s
        return dict(total)
    return {node: Fraction(1)}


def _number(x):
    """A number that the model multiplies with, exactly; None where only weights that are not here know it."""
    return None if x.is_meta or isinstance(x, FakeTensor) else Fraction(x.item())


def _float(s):
    """The number that was meant, where several were multiplied."""
    return float(s.limit_denominator(10**12))


def _product(s, number, inverse):
    if s is None or number is None:
        return None
    return s / number if inverse else s * number


def _tail(node, h, calls):
    """How the last residual h becomes the logits: through which modules, and how scaled and capped."""
    tail, scale, cap = [], Fraction(1), None
    while node is not h:
        (node, s), *others = _terms(node, h).items()
        if others or not s:
            break
        scale *= s
        if hasattr(node, "path"):
            tail.insert(0, node.path)
            value = calls[node.path][-1].x
            node = value and _plain(value.node)
        elif node and node.name() == "TanhBackward0" and cap is None:
            (node,), cap, scale = _makers(node), scale, Fraction(1)
    if node is not h or len(tail) > 3:
        raise ArchitectureError("identity 2: no three modules make its logits of the last residual")
    scale *= cap or 1
    return {"tail": tuple(tail), "logit_scale": _float(scale), "logit_softcap": cap and _float(cap)}


def _parts(model, path, blocks):
    """What each block adds to the residual, by which modules, in which order."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    found, rescales, parallel = [], False, set()
    for l, block in enumerate(blocks):
        h, of_block = _plain(block.x.node), f"{path}.{l}."
        terms = _terms(block.y.node, h)
        k = terms.pop(h, 0)
        marks = sorted((term for term in terms if hasattr(term, "path")), key=lambda mark: mark.order)
        biases = [names[term.variable].removeprefix(of_block) for term in terms if hasattr(term, "variable")]
        if k == 0 or not marks or len(marks) > 3 or len(biases) > 1 or len(terms) > len(marks) + len(biases):
            return {"missing": f"what block {l} adds is no sum of three or fewer modules' outputs"}
        rescales = rescales or k != 1
        a, m = [], []
        for mark in marks:
            addend = mark.path.removeprefix(of_block)
            name = f"{addend} {type(model.get_submodule(mark.path)).__name__}"
            reads = mark is not marks[0] and marks[0] in _behind(mark, h)
            of_mlp = bool(_MLP.search(name)) or (reads and not _MIXER.search(name))
            if m and not of_mlp:
                return {"missing": f"the modules that mix tokens in block {l} do not run before the others"}
            if of_mlp and a:
                parallel.add(not reads)
            scale = 1.0 if terms[mark] is None or not k else _float(terms[mark] / k)
            (m if of_mlp else a).append((addend, scale, next((b for b in biases if b.startswith(f"{addend}.")), None)))
        found.append((tuple(a), tuple(m)))
    if len(parallel) > 1:
        return {"missing": "in some of its blocks the MLP reads what attention added, in others not"}
    return {"parts": tuple(found), "rescales": rescales, "parallel": parallel == {True}}


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
    marks = [node for node in _behind(block.y.node, before.y.node) if hasattr(node, "path")]
    return any(mark.path.startswith(f"{path}.") and mark.order < before.y.node.order for mark in marks)


def _grows(model, path):
    """Whether the model runs where one of its modules reads two rows for one."""

    def widen(module, args, kwargs):
        rows, *more = args or kwargs.values()
        rows = torch.cat([rows, rows])
        return ((rows, *more), kwargs) if args else (args, {**kwargs, next(iter(kwargs)): rows})

    hook = model.get_submodule(path).register_forward_pre_hook(widen, with_kwargs=True)
    try:
        with torch.no_grad():
            model(input_ids=_ids(model), use_cache=False)
    except Exception:  # noqa: BLE001 (a shape that does not fit)
        return False
    finally:
        hook.remove()
    return True


def _packs(model, path, parts):
    """Whether the model runs with positions and a 4-D mask, and each module that mixes tokens depends on that, or what
    the block returns where those are not known."""
    ids = _ids(model)
    mask = torch.full((1, 1, N_TOKENS, N_TOKENS), torch.finfo(model.dtype).min, dtype=model.dtype, device=ids.device)
    mask = mask.triu(1).requires_grad_()
    try:
        _, calls = _run(model, position_ids=torch.arange(N_TOKENS, device=ids.device)[None], attention_mask=mask)
    except Exception:  # noqa: BLE001 (a shape that does not fit, a keyword that is not known)
        return False
    for l, of_block in enumerate(parts):
        block = f"{path}.{l}"
        h = _plain(calls[block][0].x.node)
        for module in [f"{block}.{addend}" for addend, _, _ in of_block[0]] if of_block else [block]:
            nodes = _behind(calls[module][0].y.node, h)
            if not any(getattr(node, "variable", None) is mask for node in nodes):
                return False
    return True
