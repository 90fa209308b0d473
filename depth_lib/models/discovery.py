"""Where a causal language model keeps its residual stream and what adds to it: measured, for any family.

The blocks are the module list whose elements hand one residual stream to each other. In each block a and m are sums of
modules' outputs, at most three of which, each times a scale, are what the block adds. Everything is seen through plain
hooks on a short random prompt.
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
Paths = tuple[str, ...]


class ArchitectureError(ValueError):
    """The model has no residual stream that the probes can read, or the identities they rely on do not hold."""


@dataclass(frozen=True)
class Architecture:
    """What was found in a model. Paths are those of `named_modules`, of parts from their block on."""

    blocks: str
    streams: tuple[int, ...]  # how many residual streams blocks hand on, () for one
    beside: int  # how many things blocks return beside the residual
    tail: Paths  # the modules that make logits of the last residual: final norm, if any, to unembedding
    logit_scale: float
    logit_softcap: float | None
    parts: tuple[tuple[Paths, Paths], ...] | None = None  # of each block the modules that make a and m; None: unknown
    scales: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())  # of these modules, the same in every block
    missing: str = ""  # why there are no parts
    parallel: bool = False  # the MLP reads h_l, as attention does
    starts: bool = False  # the pass may begin at any block: blocks read nothing but the residual from earlier ones
    grows: bool = False  # the batch may grow between blocks
    packs: bool = False  # positions and a 4-D mask may be given, so that suffixes can share one clean prefix


def discover(model: PreTrainedModel) -> Architecture:
    """Measure `model`, which is in evaluation mode. Raises ArchitectureError that says what was measured."""
    run = _Run(model)
    logits = run()
    changed = run(input_ids=torch.cat([run.ids[:, :-1], run.ids[:, :1]], dim=1))
    if not _alike(changed[:, :-1], logits[:, :-1]):
        raise ArchitectureError("its tokens see later ones: it is an encoder, and the probes read decoders")
    stream, blocks, h = _stream(run)
    tail = _tail(run, blocks[-1], h[-1], logits)
    parts = _parts(run, blocks, h)
    return Architecture(**stream, **tail, **parts, **_shortcuts(run, blocks, h, stream["beside"], logits))


class _Run:
    """A forward pass of a model on its short prompt, with hooks; calling it returns the logits."""

    def __init__(self, model):
        self.model = model
        ids = torch.randint(4, 100, (1, N_TOKENS), generator=torch.Generator().manual_seed(0))
        self.ids = ids.to(model.get_input_embeddings().weight.device)

    @torch.no_grad()
    def __call__(self, modules=(), before=None, after=None, **encoding):
        """before(module, x) may return another first input, after(module, x, y) another first output."""

        def entering(module, args, kwargs):
            changed = before(module, first((*args, *kwargs.values(), None)))
            if changed is None:
                return None
            if args:
                return (changed, *args[1:]), kwargs
            return args, {**kwargs, next(iter(kwargs)): changed}

        def leaving(module, args, kwargs, output):
            changed = after(module, first((*args, *kwargs.values(), None)), output)
            return None if changed is None else with_first(output, changed)

        with ExitStack() as stack:
            for module in modules:
                if before:
                    stack.callback(module.register_forward_pre_hook(entering, with_kwargs=True).remove)
                if after:
                    stack.callback(module.register_forward_hook(leaving, with_kwargs=True).remove)
            return self.model(**{"input_ids": self.ids, "use_cache": False} | encoding).logits


def _error(x: Tensor, truth: Tensor) -> float:
    """‖x − truth‖ / ‖truth‖."""
    x, truth = x.double().flatten(), truth.to(x.device).double().flatten()
    return float((x - truth).norm() / truth.norm().clamp_min(1e-30))


def _alike(x: object, truth: Tensor) -> bool:
    """Whether x is `truth` but for rounding, which may have passed through many blocks."""
    same_shape = isinstance(x, Tensor) and x.shape == truth.shape
    return same_shape and _error(x, truth) <= torch.finfo(truth.dtype).eps ** 0.5


def _stream(run):
    """What is known of the stream, the blocks, and h_0..h_L [1, T, d]."""
    lists = {path: list(m) for path, m in run.model.named_modules() if isinstance(m, nn.ModuleList) and len(m)}
    entered, left = {}, {}

    def before(module, x):
        entered.setdefault(module, []).append(x.clone() if isinstance(x, Tensor) else x)

    def after(module, x, output):
        left[module] = output

    run({block for blocks in lists.values() for block in blocks}, before, after)
    problems = []
    for path, blocks in sorted(lists.items(), key=lambda item: -len(item[1])):
        if any(len(entered.get(block, ())) != 1 for block in blocks):
            continue
        h = [*(entered[block][0] for block in blocks), first(left[blocks[-1]])]
        shapes = {getattr(x, "shape", None) for x in h}
        if len(shapes) > 1 or len(shape := shapes.pop() or ()) not in (3, 4) or shape[:2] != run.ids.shape:
            continue
        jumps = [_error(first(left[block]), x) for block, x in zip(blocks, h[1:], strict=True)]
        if max(jumps) > 0:
            l = jumps.index(max(jumps))
            problems.append(f"what enters block {l + 1} of {path} is not what left block {l}: off by {max(jumps):.1%}")
            continue
        output = left[blocks[0]]
        beside = len(output) - 1 if isinstance(output, tuple) else 0
        return {"blocks": path, "beside": beside, "streams": tuple(shape[2:-1])}, blocks, h
    raise ArchitectureError("; ".join(problems) or "no list of its modules passes one residual stream on")


def _tail(run, last_block, h, logits):
    """Final norm, projection and unembedding, and what is done to the logits after it."""
    names = {module: path for path, module in run.model.named_modules()}
    heads = (model.get_output_embeddings() for model in run.model.modules() if isinstance(model, PreTrainedModel))
    head, calls = next(filter(None, heads), None), []

    def after(module, x, output):
        calls.append((module, x, first(output)))

    run(names.keys() - set(last_block.modules()) | {last_block}, after=after)
    calls = calls[[module for module, *_ in calls].index(last_block) + 1 :]
    reads = [(x, z) for module, x, z in calls if module is head]
    if len(reads) != 1:
        raise ArchitectureError(f"its unembedding runs {len(reads)} times after the last block")
    ((read, z),) = reads

    def way(x, n_modules):
        """The path of modules that make the unembedding's input of x, and its scale; None where there is none."""
        if n_modules == 0:
            scale = _scale(x, read)
            return scale and ([names[head]], scale)
        for module, entering, y in calls:
            if module is not head and _alike(entering, x) and (rest := way(y, n_modules - 1)):
                return [names[module], *rest[0]], rest[1]
        return None

    found = way(h, 0) or way(h, 1) or way(h, 2)
    if not found:
        raise ArchitectureError(f"identity 2: no two modules make {names[head]}'s input of the last residual")
    tail, scale = found
    if z.shape != logits.shape:
        raise ArchitectureError(f"identity 2: {names[head]} gives {z.shape[-1]} logits, the model {logits.shape[-1]}")
    after = float((z.double() * logits).sum() / z.double().square().sum())
    readings = [(_error(z * after, logits), scale * after, None)]
    if not readings[0][0] <= 64 * torch.finfo(z.dtype).eps:
        caps = _numbers(run.model.config)
        for cap, factor in product(caps, (1.0, *caps)):
            readings.append((_error(torch.tanh(z * factor / cap) * cap, logits), scale * factor, cap))
    error, scale, cap = min(readings, key=lambda reading: reading[0])
    if error > torch.finfo(z.dtype).eps ** 0.5:
        raise ArchitectureError(
            f"identity 2: the logits are not the output of {names[head]}, scaled or soft-capped (off by {error:.1%})"
        )
    return {"tail": tuple(tail), "logit_scale": _of_config(scale, run.model.config), "logit_softcap": cap}


def _scale(x, y):
    """The number s of y = s x; None where there is none."""
    if not isinstance(x, Tensor) or x.shape != y.shape:
        return None
    s = float((x.double() * y).sum() / x.double().square().sum())
    return s if s > 0 and _alike(x * s, y) else None


def _numbers(config: PreTrainedConfig) -> list[float]:
    """The positive numbers of a config."""
    fields = config.get_text_config().to_dict().values()
    return [float(value) for value in fields if type(value) in (int, float) and value > 0]


def _of_config(measured, config):
    """A measured scale as the config has it, which is exact; the scale itself where it has none."""
    numbers = [1.0, *_numbers(config)]
    numbers += [n / config.get_text_config().num_hidden_layers ** 0.5 for n in numbers]
    return next((s for n in numbers for s in (n, 1 / n) if abs(s / measured - 1) <= 1e-5), measured)


def _parts(run, blocks, h):
    """What of each block adds to the residual, in which order, and by which scales."""
    outputs, inside = [{} for _ in blocks], []
    paths = {module: path for block in blocks for path, module in block.named_modules()}
    numbers = {block: l for l, block in enumerate(blocks)}

    def before(module, x):
        if module in numbers:
            inside[:] = [outputs[numbers[module]]]

    def after(module, x, output):
        y = first(output)
        if module in numbers:
            inside.clear()
        elif inside and isinstance(y, Tensor) and y.is_floating_point() and y.numel() == h[0].numel():
            twice = paths[module] in inside[0]
            inside[0][paths[module]] = None if twice else y.reshape(h[0].shape).clone()  # some families add in place

    run(paths, before, after)
    found, scales = [], []
    for l, candidates in enumerate(outputs):
        rounding = 2 * torch.finfo(h[l].dtype).eps * float(h[l].double().norm() + h[l + 1].double().norm())
        change = h[l + 1].double() - h[l].double()
        addends, error = _addends(change, _distinct(candidates), found[-1:], rounding)
        if error > rounding:
            nearest = f" ({' + '.join(addends)} is off by {error / float(change.norm()):.1%})" if addends else ""
            return {"missing": f"no three or fewer modules of block {l} sum to what it adds{nearest}"}
        found.append(tuple(addends))
        scales.append([_of_config(scale, run.model.config) for scale in addends.values()])
    return _order(run, blocks, h, outputs, found, scales)


def _distinct(candidates):
    """Outputs in the order in which they came; of equal ones that of the module nearest to the block."""
    kept = {}
    for path in sorted((path for path, y in candidates.items() if y is not None), key=lambda path: path.count(".")):
        if not any(torch.equal(candidates[path], y) for y in kept.values()):
            kept[path] = candidates[path]
    return {path: kept[path].double() for path in candidates if path in kept}


def _addends(change, candidates, likely, rounding):
    """The modules whose outputs, times scales, sum to `change`, as {path: scale}, and the error; else the nearest.

    The fewest modules win, without scales rather than with; those that are `likely` are tried first.
    """
    nearest = {}, float("inf")
    choices = [paths for paths in likely if candidates.keys() >= set(paths)]
    choices += [paths for n in (1, 2, 3) for paths in combinations(candidates, n)]
    for scaled in (False, True):
        for paths in choices:
            outputs = torch.stack([candidates[path].flatten() for path in paths], dim=1)
            scales = torch.ones(len(paths), dtype=outputs.dtype, device=outputs.device)
            if scaled:
                scales = torch.linalg.lstsq(outputs, change.flatten()).solution
            error = float((change.flatten() - outputs @ scales).norm())
            if error < nearest[1] and scales.min() > 0:
                nearest = dict(zip(paths, scales.tolist(), strict=True)), error
            if nearest[1] <= rounding < 1e-3 * float(change.norm()):
                return nearest
    return nearest


def _order(run, blocks, h, outputs, found, scales):
    """Which of the modules found in each block are attention's and which the MLP's, and whether these read those.

    Attention's are the first module and those after it that mix tokens too and do not read it.
    """
    owners = {block.get_submodule(path): (l, path) for l, block in enumerate(blocks) for path in found[l]}
    numbers = {block: l for l, block in enumerate(blocks)}

    def depend(tokens, firsts):
        """Of every block, its modules whose last token changes with the earlier tokens that enter the block, or with
        what the first module returns. All else that they read is as in a clean run."""
        dependent = [set() for _ in blocks]

        def before(module, x):
            if module not in numbers:
                return None
            x = h[numbers[module]].clone()
            if tokens:
                x[:, :-1] = x[:, :-1].roll(1, -1)
            return x

        def after(module, x, output):
            if module in numbers:
                return None
            l, path = owners[module]
            clean, y = outputs[l][path], first(output)
            y = y.reshape(clean.shape)
            if not _alike(y[:, -1], clean[:, -1]):
                dependent[l].add(path)
            y = y.clone() if tokens else clean.clone()
            y[:, -1] = clean[:, -1]
            if firsts and path == found[l][0]:
                y += h[l].roll(1, -1)
            return y.reshape(first(output).shape)

        run(owners.keys() | numbers.keys(), before, after)
        return dependent

    mixing, reading = depend(True, False), depend(False, True)
    parts, part_scales, sequential = [], [(), ()], set()
    for l, paths in enumerate(found):
        with_first_module = [p for p in paths[1:] if p in mixing[l] and p not in reading[l]]
        attention = (paths[0], *with_first_module)
        if len(paths) == 1 and paths[0] not in mixing[l]:
            attention = ()
        mlp = tuple(path for path in paths if path not in attention)
        if attention + mlp != paths or (attention and mlp and paths[0] not in mixing[l]):
            return {"missing": f"the modules that mix tokens in block {l} do not run before the others"}
        if attention and mlp:
            sequential.add(mlp[0] in reading[l])
        parts.append((attention, mlp))
        both = tuple(scales[l][: len(attention)]), tuple(scales[l][len(attention) :])
        for k, (own, longest) in enumerate(zip(both, part_scales, strict=True)):
            if any(abs(s - t) > 1e-5 for s, t in zip(own, longest, strict=False)):
                return {"missing": f"block {l} scales what it adds by {own}, and others by {longest}"}
            part_scales[k] = max(own, longest, key=len)
    if len(sequential) > 1:
        return {"missing": "in some of its blocks the MLP reads what attention added, in others not"}
    return {"parts": tuple(parts), "scales": tuple(part_scales), "parallel": sequential == {False}}


def _shortcuts(run, blocks, h, beside, logits):
    """Which ways of computing less give what the whole computation gives."""
    middle_and_last = {len(blocks) // 2, len(blocks) - 1}

    def logits_from(l, rows, skip=True, **encoding):
        """The logits where block l reads `rows`, after no other block ran, or all."""
        passed = (rows, *[None] * beside) if beside else rows
        with ExitStack() as stack:
            for block in blocks[:l] if skip else ():
                stack.enter_context(mock.patch.object(block, "forward", lambda *_, **__: passed))
            return run([blocks[l]], lambda module, x: rows, **encoding)

    def starts():
        for l in middle_and_last:
            yield logits_from(l, h[l]), logits

    def grows():
        for l in middle_and_last:
            rows = torch.cat([h[l], h[l].roll(1, -1)])
            yield logits_from(l, rows), logits_from(l, rows, skip=False, input_ids=run.ids.expand(2, -1))

    def packs():
        order, _, visible = pack([3, 5], N_TOKENS)
        order, mask = torch.tensor([order], device=run.ids.device), additive(visible, logits.dtype).to(run.ids.device)
        yield run(input_ids=run.ids[:, order[0]], position_ids=order, attention_mask=mask), logits[:, order[0]]

    return {"starts": _holds(starts), "grows": _holds(grows), "packs": _holds(packs)}


def _holds(shortcut: Callable[[], Iterator[tuple[Tensor, Tensor]]]) -> bool:
    try:
        return all(_alike(x, truth) for x, truth in shortcut())
    except Exception:  # noqa: BLE001 (a shape that does not fit, a keyword that is not known)
        return False
