"""Where a causal language model keeps its residual stream and what adds to it: measured, for any family.

A short random prompt runs with hooks on every module. The blocks are the longest list of modules of which each reads
what the one before returned. What a block adds is fitted by three formulas to the outputs of the modules inside it; the
logits are followed back, module by module, to the last residual. `check.py` then measures on the model that runs
whether this holds.
"""

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import combinations, pairwise
from unittest import mock

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..probes.packing import additive, pack
from ..probes.residual_stream import first, with_first
from .gguf import ModelError

N_TOKENS = 8
SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")  # what configs call that of logits
# Of each module whose scaled outputs sum to a part: its path, the scale, and a parameter of it that is added, or None.
Addends = tuple[tuple[str, float, str | None], ...]


class ArchitectureError(ModelError):
    """The model has no residual stream that the probes can read, or the identities they rely on do not hold."""


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


@dataclass(frozen=True, eq=False)
class Call:
    """A module's call in a forward pass. Tensors are copies on the CPU, as some families add in place."""

    path: str
    x: object  # the first input
    y: object  # the first output
    beside: int  # how many more outputs there are


def discover(model: PreTrainedModel) -> Architecture:
    """Measure `model`, which is in evaluation mode. Raises ArchitectureError that says what was measured."""
    ids = torch.randint(4, 100, (1, N_TOKENS), generator=torch.Generator().manual_seed(0))
    ids %= model.config.get_text_config().vocab_size
    logits, calls = _run(model, ids)
    changed, _ = _run(model, torch.cat([ids[:, :-1], ids[:, :1]], dim=1))
    if not _alike(changed[:, :-1], logits[:, :-1]):
        raise ArchitectureError("its tokens see later ones: it is an encoder, and the probes read decoders")
    path, blocks = _blocks(model, calls)
    after = [call for call in calls[calls.index(blocks[-1]) + 1 :] if not path.startswith(call.path)]
    return Architecture(
        blocks=path,
        streams=tuple(blocks[0].x.shape[2:-1]),
        beside=blocks[0].beside,
        **_tail(model.config, blocks[-1].y, after, logits),
        **_parts(model, ids, blocks, calls),
        **_shortcuts(model, ids, blocks, logits),
    )


@torch.no_grad()
def _run(model, ids, enter=None, add=None, **encoding):
    """The logits, and the calls of all modules in the order in which they end. enter: {path: what that module reads in
    place of its own first input}; add: {path: what is added to its first output}."""
    enter, add, entered, calls = enter or {}, add or {}, {}, []

    def before(path, module, args, kwargs):
        x = first((*args, *kwargs.values(), None))
        if path in enter:
            x = enter[path].to(x.device)
            args, kwargs = ((x, *args[1:]), kwargs) if args else (args, {**kwargs, next(iter(kwargs)): x})
        entered[path] = _copied(x)
        return args, kwargs

    def after(path, module, args, output):
        if path in add:
            output = with_first(output, first(output) + add[path].reshape(first(output).shape).to(first(output).device))
        beside = len(output) - 1 if isinstance(output, tuple) else 0
        calls.append(Call(path, entered[path], _copied(first(output)), beside))
        return output

    with ExitStack() as stack:
        for path, module in model.named_modules():
            stack.callback(module.register_forward_pre_hook(partial(before, path), with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(partial(after, path)).remove)
        device = model.get_input_embeddings().weight.device
        logits = model(input_ids=ids.to(device), use_cache=False, **encoding).logits
    return logits.cpu(), calls


def _copied(x):
    return x.to("cpu", copy=True) if isinstance(x, Tensor) else x


def _alike(x, truth):
    """Whether x is `truth` but for rounding, which may have passed through many blocks."""
    if x.shape != truth.shape:
        return False
    x, truth, eps = x.double(), truth.double(), torch.finfo(truth.dtype).eps
    return float((x - truth).norm()) <= eps**0.5 * float(truth.norm())


def _scale(x, y):
    """The number s of y = s x; None where there is none."""
    if not (isinstance(x, Tensor) and isinstance(y, Tensor) and x.shape == y.shape):
        return None
    s = float((x.double() * y).sum() / x.double().square().sum())
    return s if s > 0 and _alike(x * s, y) else None


def _exact(measured, config, eps=0.0):
    """A measured scale as the config has it, or one over that; the scale itself where the config has neither."""
    fields = config.get_text_config().to_dict().values()
    numbers = [1.0, *(float(value) for value in fields if type(value) in (int, float) and value > 0)]
    return next((s for n in numbers for s in (n, 1 / n) if abs(s / measured - 1) <= max(1e-5, eps)), measured)


def _blocks(model, calls):
    """The path of the list of blocks, and the blocks' calls."""
    lists, problems = [(path, len(m)) for path, m in model.named_modules() if isinstance(m, nn.ModuleList)], []
    for path, n_blocks in sorted(lists, key=lambda item: -item[1]):
        paths = [f"{path}.{l}" for l in range(n_blocks)]
        blocks = [call for call in calls if call.path in paths]
        shapes = {getattr(h, "shape", ()) for block in blocks for h in (block.x, block.y)}
        shape = shapes.pop() if len(shapes) == 1 else ()
        if [block.path for block in blocks] == paths and len(shape) in (3, 4) and shape[:2] == (1, N_TOKENS):
            jumps = [float((block.y - after.x).norm() / after.x.norm()) for block, after in pairwise(blocks)]
            if not any(jumps):
                return path, blocks
            l = jumps.index(max(jumps))
            problems.append(f"what enters block {l + 1} of {path} is not what left block {l}: off by {jumps[l]:.1%}")
    raise ArchitectureError("; ".join(problems) or "no list of its modules passes one residual stream on")


def _tail(config, h, calls, logits):
    """How the last residual h becomes the logits: through which modules, followed back from the logits, and how scaled
    and capped."""
    text = config.get_text_config()
    cap = next(filter(None, (getattr(text, name, None) for name in SOFTCAPS)), None)
    read, tail, scale = logits if cap is None else torch.atanh(logits / cap) * cap, [], 1.0
    while not (gain := _scale(h, read)):
        makers = [call for call in calls if _scale(call.y, read) and not _scale(call.x, call.y)]
        if not makers or len(tail) == 3:
            raise ArchitectureError("identity 2: no three modules make its logits of the last residual")
        scale *= _scale(makers[-1].y, read)
        tail.insert(0, makers[-1].path)
        read = makers[-1].x
    return {"tail": tuple(tail), "logit_scale": _exact(gain * scale, config), "logit_softcap": cap}


def _parts(model, ids, blocks, calls):
    """What each block adds to the residual, by which modules, in which order."""
    found, rescales, likely = [], False, ()
    ran = {call.path: n for n, call in enumerate(calls)}
    for l, block in enumerate(blocks):
        eps = torch.finfo(block.y.dtype).eps
        likely, (kept, *scales), error = _fit(block, _outputs(model, block, calls), likely)
        if error:
            nearest = f" ({' + '.join(path for path, _ in likely)} is off by {error:.1%})" if likely else ""
            return {"missing": f"no three or fewer modules of block {l} sum to what it adds{nearest}"}
        kept = _exact(kept, model.config, eps)
        rescales = rescales or kept != 1
        scales = [_exact(scale / kept, model.config, eps) for scale in scales]
        addends = [(path, scale, bias) for (path, bias), scale in zip(likely, scales, strict=True)]
        found.append(sorted(addends, key=lambda addend: ran[f"{block.path}.{addend[0]}"]))
    return _order(model, ids, blocks, calls, found) | {"rescales": rescales}


def _outputs(model, block, calls):
    """{(path, bias): output} of the modules in a block that run once and return as much as it does, those nearest to
    the block first. bias: a parameter of the module's own that is added, or None."""
    n_calls, outputs = Counter(call.path for call in calls), {}
    for call in sorted(calls, key=lambda call: call.path.count(".")):
        path, y = call.path.removeprefix(f"{block.path}."), call.y
        if path == call.path or n_calls[call.path] > 1 or not isinstance(y, Tensor) or not y.is_floating_point():
            continue
        if y.numel() == block.y.numel():
            outputs[path, None] = y.reshape(block.y.shape)
            module = model.get_submodule(call.path)
            for name, bias in module.named_parameters(recurse=False) if [*module.children()] else ():
                if bias.shape == block.y.shape[-1:]:
                    outputs[path, f"{path}.{name}"] = outputs[path, None] + bias.cpu()
    return outputs


def _fit(block, outputs, likely):
    """The outputs y that make what leaves a block of what enters it, h: (their keys, k and s of k h + Σ s y, the error
    relative to what the block adds, 0 if that is rounding).

    The `likely` outputs are tried first, then one, two and three of them. The first without an error win, else the
    nearest. Where rounding can hide what a module adds, as in half precision, all are tried, and of those whose error
    may be rounding more modules have to be nearer by a fifth.
    """
    h, after = block.x.double().flatten(), block.y.double().flatten()
    change, rounding = (after - h).norm(), 2 * torch.finfo(block.y.dtype).eps * (h.norm() + after.norm())
    choices = [likely] if likely and outputs.keys() >= set(likely) else []
    choices += [keys for n in (1, 2, 3) for keys in combinations(outputs, n)]
    nearest, least = ((), [1.0]), float("inf")
    for keys in choices:
        terms = torch.stack([h, *(outputs[key].double().flatten() for key in keys)], dim=1)
        scales = torch.linalg.lstsq(terms, after).solution
        error = (after - terms @ scales).norm()
        carries = scales[0] * h.norm() > 1e-2 * after.norm()  # else an output holds h already, or replaces it
        enough = 1 if least > rounding else 0.8 if len(keys) > len(nearest[0]) else 0.99
        if error < least * enough and carries and scales.min() > 0:
            nearest, least = (keys, scales.tolist()), error
        if least <= rounding < 1e-3 * change:
            break
    return *nearest, 0.0 if least <= rounding else float(least / change)


def _order(model, ids, blocks, calls, found):
    """Which of the modules found in each block are attention's and which the MLP's, and whether these read those.

    Attention's mix tokens, and do not read what the first one returns. Measured in one more run in which each block
    reads what it read, but for the tokens between the first and the last, and something is added to what its first
    module returns for the first token, which sees itself only.
    """
    writers = [[f"{block.path}.{path}" for path, _, _ in addends] for block, addends in zip(blocks, found, strict=True)]

    def by_token(calls):
        return {call.path: call.y.reshape(N_TOKENS, -1) for call in calls if call.path in sum(writers, [])}

    clean, enter, add = by_token(calls), {}, {}
    for block, (writer, *_) in zip(blocks, writers, strict=True):
        enter[block.path], add[writer] = block.x.clone(), torch.zeros_like(clean[writer])
        enter[block.path][:, 1:-1] = block.x[:, 1:-1].roll(1, -1)
        add[writer][0] = block.x[0, 0].flatten().roll(1)
    other = by_token(_run(model, ids, enter, add)[1])
    reading, mixing = ({path for path in clean if not _alike(other[path][t], clean[path][t])} for t in (0, -1))
    parts, parallel = [], set()
    for l, (addends, paths) in enumerate(zip(found, writers, strict=True)):
        attends = [path in mixing and path not in reading.difference(paths[:1]) for path in paths]
        n = sum(attends)
        if not all(attends[:n]) or (n == 0 and mixing.intersection(paths)):
            return {"missing": f"the modules that mix tokens in block {l} do not run before the others"}
        if 0 < n < len(paths):
            parallel.add(paths[n] not in reading)
        parts.append((tuple(addends[:n]), tuple(addends[n:])))
    if len(parallel) > 1:
        return {"missing": "in some of its blocks the MLP reads what attention added, in others not"}
    return {"parts": tuple(parts), "parallel": parallel == {True}}


def _shortcuts(model, ids, blocks, logits):
    """Which ways of computing less give what the whole computation gives."""
    middle_and_last = [blocks[len(blocks) // 2], blocks[-1]]

    def logits_from(block, rows):
        """The logits where a block reads `rows`, after no other block ran."""
        rows = rows.to(next(model.get_submodule(block.path).parameters()).device)
        passed = (rows, *[None] * block.beside) if block.beside else rows
        with ExitStack() as stack:
            for earlier in blocks[: blocks.index(block)]:
                module = model.get_submodule(earlier.path)
                stack.enter_context(mock.patch.object(module, "forward", lambda *_, **__: passed))
            return _run(model, ids, {block.path: rows})[0]

    def starts():
        return all(_alike(logits_from(block, block.x), logits) for block in middle_and_last)

    def grows():
        for block in middle_and_last:
            rows = torch.cat([block.x, block.x.roll(1, -1)])
            if not _alike(logits_from(block, rows), torch.cat([logits_from(block, row[None]) for row in rows])):
                return False
        return starts()

    def packs():
        order, _, visible = pack([3, 5], N_TOKENS)
        mask = additive(visible, logits.dtype).to(model.device)
        positions = torch.tensor([order]).to(model.device)
        packed, _ = _run(model, ids[:, order], position_ids=positions, attention_mask=mask)
        return _alike(packed, logits[:, order])

    return {"starts": _holds(starts), "grows": _holds(grows), "packs": _holds(packs)}


def _holds(shortcut):
    try:
        return shortcut()
    except Exception:  # noqa: BLE001 (a shape that does not fit, a keyword that is not known)
        return False
