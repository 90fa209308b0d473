"""Where a causal language model keeps its residual stream and what adds to it: measured, for any family.

A short random prompt runs with plain hooks. The blocks are the module list whose elements hand one residual stream to
each other; in each block a and m are sums of modules' outputs, at most three of which, each times a scale, are what the
block adds to the residual before it may multiply the whole by one number.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations, product
from unittest import mock

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from ..probes.packing import additive, pack
from ..probes.residual_stream import first, with_first

N_TOKENS = 8
# Of each module whose scaled outputs sum to a part: its path, the scale, and a parameter of it that is added, or None.
Addends = tuple[tuple[str, float, str | None], ...]


class ArchitectureError(ValueError):
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


@dataclass(frozen=True)
class Call:
    """A module's call in a forward pass. Tensors are copies, as some families add in place."""

    module: nn.Module
    x: object  # the first input
    y: object  # the first output
    beside: int  # how many more outputs there are


def discover(model: PreTrainedModel) -> Architecture:
    """Measure `model`, which is in evaluation mode. Raises ArchitectureError that says what was measured."""
    run = _Run(model)
    changed = run(input_ids=torch.cat([run.ids[:, :-1], run.ids[:, :1]], dim=1))
    if not _alike(changed[:, :-1], run.logits[:, :-1]):
        raise ArchitectureError("its tokens see later ones: it is an encoder, and the probes read decoders")
    stream, blocks, h = _stream(run)
    parts = _parts(run, blocks, h)
    return Architecture(**stream, **_tail(run, blocks[-1], h[-1]), **parts, **_shortcuts(run, blocks, h, stream))


class _Run:
    """Forward passes of a model on a short prompt: the clean one's logits and calls, and others by calling it."""

    def __init__(self, model):
        self.model, self.calls = model, []
        self.paths = {module: path for path, module in model.named_modules()}
        ids = torch.randint(4, 100, (1, N_TOKENS), generator=torch.Generator().manual_seed(0))
        self.ids = ids.to(model.get_input_embeddings().weight.device)
        entered = {}

        def before(module, x):
            entered.setdefault(module, []).append(_copied(x))

        def after(module, output):
            beside = len(output) - 1 if isinstance(output, tuple) else 0
            self.calls.append(Call(module, entered[module].pop(), _copied(first(output)), beside))

        self.logits = self(dict.fromkeys(self.paths, before), dict.fromkeys(self.paths, after))

    @torch.no_grad()
    def __call__(self, before=None, after=None, **encoding):
        """The logits. before[module](module, x) may return another first input, after[module](module, output) another
        output."""

        def entering(module, args, kwargs):
            x = before[module](module, first((*args, *kwargs.values(), None)))
            if x is None:
                return None
            return ((x, *args[1:]), kwargs) if args else (args, {**kwargs, next(iter(kwargs)): x})

        def leaving(module, args, output):
            return after[module](module, output)

        with ExitStack() as stack:
            for module in before or ():
                stack.callback(module.register_forward_pre_hook(entering, with_kwargs=True).remove)
            for module in after or ():
                stack.callback(module.register_forward_hook(leaving).remove)
            return self.model(**{"input_ids": self.ids, "use_cache": False} | encoding).logits


def _copied(x):
    return x.clone() if isinstance(x, Tensor) else x


def _error(x: Tensor, truth: Tensor) -> float:
    """‖x − truth‖ / ‖truth‖."""
    x, truth = x.double().flatten(), truth.to(x.device).double().flatten()
    return float((x - truth).norm() / truth.norm().clamp_min(1e-30))


def _alike(x: object, truth: object) -> bool:
    """Whether x is `truth` but for rounding, which may have passed through many blocks."""
    if not (isinstance(x, Tensor) and isinstance(truth, Tensor) and x.shape == truth.shape):
        return False
    return _error(x, truth) <= torch.finfo(truth.dtype).eps ** 0.5


def _stream(run):
    """What is known of the stream, the blocks, and h_0..h_L [1, T, d]."""
    calls, problems = {}, []
    for call in run.calls:
        calls.setdefault(call.module, []).append(call)
    lists = [(path, list(m)) for m, path in run.paths.items() if isinstance(m, nn.ModuleList) and len(m)]
    for path, blocks in sorted(lists, key=lambda item: -len(item[1])):
        if any(len(calls.get(block, ())) != 1 for block in blocks):
            continue
        left = [calls[block][0].y for block in blocks]
        h = [*(calls[block][0].x for block in blocks), left[-1]]
        shapes = {getattr(x, "shape", None) for x in h}
        if len(shapes) > 1 or len(shape := shapes.pop() or ()) not in (3, 4) or shape[:2] != run.ids.shape:
            continue
        jumps = [_error(y, x) for y, x in zip(left, h[1:], strict=True)]
        if max(jumps) > 0:
            l = jumps.index(max(jumps))
            problems.append(f"what enters block {l + 1} of {path} is not what left block {l}: off by {max(jumps):.1%}")
            continue
        return {"blocks": path, "beside": calls[blocks[0]][0].beside, "streams": tuple(shape[2:-1])}, blocks, h
    raise ArchitectureError("; ".join(problems) or "no list of its modules passes one residual stream on")


def _tail(run, last_block, h):
    """The modules that make logits of the last residual h, and what is done to the logits after them."""
    heads = (model.get_output_embeddings() for model in run.model.modules() if isinstance(model, PreTrainedModel))
    head = next(filter(None, heads), None)
    calls = run.calls[[call.module for call in run.calls].index(last_block) + 1 :]
    unembeddings = [call for call in calls if call.module is head]
    if len(unembeddings) != 1:
        raise ArchitectureError(f"its unembedding runs {len(unembeddings)} times after the last block")
    name = run.paths[head]
    way = _way(run, calls, h, unembeddings[0].x, 2)
    if not way:
        raise ArchitectureError(f"identity 2: no two modules make {name}'s input of the last residual")
    tail, scale = way
    scale, cap = _finish(run, name, unembeddings[0].y, scale)
    return {"tail": (*tail, name), "logit_scale": scale, "logit_softcap": cap}


def _way(run, calls, h, read, most):
    """The paths of at most `most` modules that make `read` of h one after the other, and its scale; None without."""
    if scale := _scale(h, read):
        return [], scale
    for call in calls if most else ():
        scale = _scale(call.y, read)
        if scale and _scale(call.x, call.y) is None and (way := _way(run, calls, h, call.x, most - 1)):
            return [*way[0], run.paths[call.module]], way[1] * scale
    return None


def _finish(run, head, z, scale):
    """The scale of the logits and their soft-cap, from the output z of the module `head`, whose input has a `scale`."""
    config = run.model.config
    if z.shape != run.logits.shape:
        raise ArchitectureError(f"identity 2: {head} gives {z.shape[-1]} logits, the model {run.logits.shape[-1]}")
    factor = float((z.double() * run.logits).sum() / z.double().square().sum())
    readings = [(_error(z * factor, run.logits), factor, None)]
    if not readings[0][0] <= 64 * torch.finfo(z.dtype).eps:
        caps = _numbers(config)
        for cap, factor in product(caps, (1.0, *caps)):
            readings.append((_error(torch.tanh(z * factor / cap) * cap, run.logits), factor, cap))
    error, factor, cap = min(readings, key=lambda reading: reading[0])
    if error > torch.finfo(z.dtype).eps ** 0.5:
        raise ArchitectureError(
            f"identity 2: the logits are not the output of {head}, scaled or soft-capped (off by {error:.1%})"
        )
    return _of_config(scale * factor, config), cap


def _scale(x: object, y: object) -> float | None:
    """The number s of y = s x; None where there is none."""
    if not (isinstance(x, Tensor) and isinstance(y, Tensor) and x.shape == y.shape):
        return None
    s = float((x.double() * y).sum() / x.double().square().sum())
    return s if s > 0 and _alike(x * s, y) else None


def _numbers(config: PreTrainedConfig) -> list[float]:
    """The positive numbers of a config."""
    fields = config.get_text_config().to_dict().values()
    return [float(value) for value in fields if type(value) in (int, float) and value > 0]


def _of_config(measured: float, config: PreTrainedConfig) -> float:
    """A measured scale as the config has it, which is exact; the scale itself where it has none."""
    numbers = [1.0, *_numbers(config)]
    numbers += [n / config.get_text_config().num_hidden_layers ** 0.5 for n in numbers]
    return next((s for n in numbers for s in (n, 1 / n) if abs(s / measured - 1) <= 1e-5), measured)


def _parts(run, blocks, h):
    """What each block adds to the residual, by which modules, in which order."""
    found, rescales = [], False
    for l, candidates in enumerate(_outputs(run, blocks, h[0])):
        addends, rescaled, error = _addends(h[l], h[l + 1], candidates, found[-1:])
        biases = {}
        if error > 0 and found:
            with_bias = _with_bias(blocks[l], h[l], h[l + 1], candidates, found[-1])
            addends, error, biases = with_bias or (addends, error, {})
        if error > 0:
            nearest = f" ({' + '.join(addends)} is off by {error:.1%})" if addends else ""
            return {"missing": f"no three or fewer modules of block {l} sum to what it adds{nearest}"}
        scales = {path: _of_config(scale, run.model.config) for path, scale in addends.items()}
        found.append({path: (path, scale, biases.get(path)) for path, scale in scales.items()})
        rescales |= rescaled
    order = _order(run, blocks, h, found)
    return order | {"rescales": rescales and "parts" in order}


def _with_bias(block, before, after, candidates, likely):
    """({path: scale}, error 0, {path: bias}) where modules like those of the block before and a bias, which one of them
    returns beside its output, are what the block adds; else None."""
    same = {path: y for path, y in candidates.items() if path in likely}
    for path, bias in block.named_parameters():
        owner = path.rpartition(".")[0]
        if owner in likely and bias.shape == after.shape[-1:]:
            addends, _, error = _addends(before, after - bias, same, [likely])
            if error == 0:
                return addends, error, {owner: path}
    return None


def _outputs(run, blocks, h):
    """Of each block {path: output} of the modules in it that could add to a residual like h, float64; of several that
    return the same, the one nearest to the block."""
    inside, names = [{} for _ in blocks], {module: path for block in blocks for path, module in block.named_modules()}
    l = 0
    for call in run.calls[: [call.module for call in run.calls].index(blocks[-1])]:
        y, path = call.y, names.get(call.module)
        if path == "":
            l += 1
        elif path and isinstance(y, Tensor) and y.is_floating_point() and y.numel() == h.numel():
            inside[l][path] = None if path in inside[l] else y.reshape(h.shape)  # None: not one output but several
    outputs = []
    for candidates in inside:
        kept = {}
        for path in sorted(candidates, key=lambda path: path.count(".")):
            y = candidates[path]
            if y is not None and not any(torch.equal(y, other) for other in kept.values()):
                kept[path] = y
        outputs.append({path: kept[path].double() for path in candidates if path in kept})
    return outputs


def _addends(before, after, candidates, likely):
    """The modules whose outputs, times scales, a block adds to the residual: ({path: scale}, whether it multiplies the
    sum by one number, error). The error is 0 if they make it to rounding; else they are the nearest.

    The fewest modules win, without scales rather than with; those that are `likely` are tried first.
    """
    eps = torch.finfo(after.dtype).eps
    before, after = before.double().flatten(), after.double().flatten()
    rounding = 2 * eps * float(before.norm() + after.norm())
    change = float((after - before).norm())
    nearest, least = ({}, False), float("inf")
    choices = [tuple(paths) for paths in likely if candidates.keys() >= set(paths)]
    choices += [paths for n in (1, 2, 3) for paths in combinations(candidates, n)]
    for scaled, rescaled in ((False, False), (True, False), (True, True)):
        for paths in choices:
            outputs = torch.stack([before, *(candidates[path].flatten() for path in paths)], dim=1)
            scales = torch.ones(len(paths) + 1, dtype=outputs.dtype, device=outputs.device)
            if rescaled:
                scales = torch.linalg.lstsq(outputs, after).solution
            elif scaled:
                scales[1:] = torch.linalg.lstsq(outputs[:, 1:], after - before).solution
            error = float((after - outputs @ scales).norm())
            carried = float(scales[0] * before.norm() / after.norm())  # the share of what leaves that entered
            if rescaled and (error > rounding or carried < 1e-2):
                continue
            if error < least and scales.min() > 0:
                addends = zip(paths, (scales[1:] / scales[0]).tolist(), strict=True)
                nearest, least = (dict(addends), rescaled), error
            if least <= rounding < 1e-3 * change:
                return *nearest, 0.0
    return *nearest, 0.0 if least <= rounding else least / change


def _order(run, blocks, h, found):
    """Which of the modules found in each block are attention's and which the MLP's, and whether these read those.

    Attention's are the first module and those after it that mix tokens too and do not read it. Measured on a batch of
    three: as in a clean run; with other tokens before the last one in what enters each block; and with something added
    to what the first module returns. All that other modules return for the last token is as in the clean run.
    """
    numbers = {block: l for l, block in enumerate(blocks)}
    owners = {block.get_submodule(path): (l, path) for l, block in enumerate(blocks) for path in found[l]}
    mixing, reading = [[set() for _ in blocks] for _ in range(2)]

    def before(block, x):
        x = h[numbers[block]].repeat(3, *[1] * (x.dim() - 1))
        x[1, :-1] = x[1, :-1].roll(1, -1)
        return x

    def after(module, output):
        l, path = owners[module]
        x = first(output).clone()
        y = x.view(3, *h[0].shape[1:])
        if not _alike(y[1, -1], y[0, -1]):
            mixing[l].add(path)
        if not _alike(y[2, -1], y[0, -1]):
            reading[l].add(path)
        y[1, -1], y[2] = y[0, -1], y[0]
        if path == next(iter(found[l])):
            y[2] += h[l][0].roll(1, -1)
        return with_first(output, x)

    run(dict.fromkeys(blocks, before), dict.fromkeys(owners, after), input_ids=run.ids.expand(3, -1))
    parts, sequential = [], set()
    for l, addends in enumerate(found):
        paths = list(addends)
        attention = [p for p in paths if p == paths[0] or p in mixing[l] - reading[l]]
        if len(paths) == 1 and paths[0] not in mixing[l]:
            attention = []
        mlp = [path for path in paths if path not in attention]
        if attention + mlp != paths or (attention and mlp and paths[0] not in mixing[l]):
            return {"missing": f"the modules that mix tokens in block {l} do not run before the others"}
        if attention and mlp:
            sequential.add(mlp[0] in reading[l])
        parts.append(tuple(tuple(addends[path] for path in part) for part in (attention, mlp)))
    if len(sequential) > 1:
        return {"missing": "in some of its blocks the MLP reads what attention added, in others not"}
    return {"parts": tuple(parts), "parallel": sequential == {False}}


def _shortcuts(run, blocks, h, stream):
    """Which ways of computing less give what the whole computation gives."""
    middle_and_last = {len(blocks) // 2, len(blocks) - 1}

    def logits_from(l, rows, skip=True, **encoding):
        """The logits where block l reads `rows`, after no other block ran, or all."""
        passed = (rows, *[None] * stream["beside"]) if stream["beside"] else rows
        with ExitStack() as stack:
            for block in blocks[:l] if skip else ():
                stack.enter_context(mock.patch.object(block, "forward", lambda *_, **__: passed))
            return run({blocks[l]: lambda block, x: rows}, **encoding)

    def starts():
        for l in middle_and_last:
            yield logits_from(l, h[l]), run.logits

    def grows():
        for l in middle_and_last:
            rows = torch.cat([h[l], h[l].roll(1, -1)])
            yield logits_from(l, rows), logits_from(l, rows, skip=False, input_ids=run.ids.expand(2, -1))

    def packs():
        order, _, visible = pack([3, 5], N_TOKENS)
        order = torch.tensor([order], device=run.ids.device)
        mask = additive(visible, run.logits.dtype).to(run.ids.device)
        yield run(input_ids=run.ids[:, order[0]], position_ids=order, attention_mask=mask), run.logits[:, order[0]]

    return {"starts": _holds(starts), "grows": _holds(grows), "packs": _holds(packs)}


def _holds(shortcut: Callable[[], Iterator[tuple[Tensor, Tensor]]]) -> bool:
    try:
        return all(_alike(x, truth) for x, truth in shortcut())
    except Exception:  # noqa: BLE001 (a shape that does not fit, a keyword that is not known)
        return False
