"""Where a causal language model keeps its residual stream and what adds to it: measured, for any family.

The blocks are the module list whose elements hand one residual stream to each other. In each block a and m are the
outputs of the two modules (or the one) whose sum, times one scale, is what the block adds. The final norm is what maps
the last residual to what the unembedding reads. Everything is seen through plain hooks on a short random prompt.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import combinations
from unittest import mock

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from ..probes.packing import additive, pack
from ..probes.residual_stream import first

N_TOKENS = 8
Parts = tuple[str | None, str | None]


class ArchitectureError(ValueError):
    """The model has no residual stream that the probes can read, or the identities they rely on do not hold."""


@dataclass(frozen=True)
class Architecture:
    """What was found in a model. Paths are those of `named_modules`, of parts from their block on.

    Scales and caps are numbers, or expressions of config fields such as "1 / logits_scaling".
    """

    blocks: str
    unembed: str
    ln_final: str | None
    project_out: str | None  # a module between final norm and unembedding
    logit_scale: float | str
    logit_softcap: float | str | None
    beside: int  # how many things blocks return beside the residual
    parts: tuple[Parts, ...] | None = None  # what attention and MLP of each block add; None: not to be told apart
    missing: str = ""  # why there are no parts
    residual_scale: float | str = 1.0  # of both parts
    parallel: bool = False  # the MLP reads h_l, as attention does
    starts: bool = False  # the pass may begin at any block: blocks read nothing but the residual from earlier ones
    grows: bool = False  # the batch may grow between blocks
    packs: bool = False  # positions and a 4-D mask may be given, so that suffixes can share one clean prefix


def discover(model: PreTrainedModel) -> Architecture:
    """Measure `model`, which is in evaluation mode. Raises ArchitectureError that says what was measured."""
    run = _Run(model)
    logits = run()
    changed = run(input_ids=run.ids.index_fill(1, torch.tensor([N_TOKENS - 1], device=run.ids.device), 3))
    if not _alike(logits[:, :-1], changed[:, :-1]):
        raise ArchitectureError("its tokens see later ones: it is an encoder, and the probes read decoders")
    found, blocks, residuals = _stream(run)
    found = Architecture(**found, **_tail(run, blocks[-1], residuals[-1]))
    _check_sole_stream(run, blocks)
    return Architecture(
        **vars(found) | _parts(run, blocks, residuals) | _shortcuts(run, blocks, residuals, found.beside, logits)
    )


class _Run:
    """A forward pass of a model on its short prompt, with hooks; calling it returns the logits."""

    def __init__(self, model):
        self.model = model
        draw = torch.Generator().manual_seed(0)
        device = model.get_input_embeddings().weight.device
        self.ids = torch.randint(4, 100, (1, N_TOKENS), generator=draw).to(device)

    @torch.no_grad()
    def __call__(self, before=None, after=None, modules=(), **encoding):
        """before(module, x) may return another first input, after(module, x, output) another output."""

        def entering(module, args, kwargs):
            x = _first_input(args, kwargs)
            changed = before(module, x)
            if changed is None:
                return None
            if args:
                return (changed, *args[1:]), kwargs
            return args, {**kwargs, next(iter(kwargs)): changed}

        def leaving(module, args, kwargs, output):
            return after(module, _first_input(args, kwargs), output)

        with ExitStack() as stack:
            for module in modules:
                if before:
                    stack.callback(module.register_forward_pre_hook(entering, with_kwargs=True).remove)
                if after:
                    stack.callback(module.register_forward_hook(leaving, with_kwargs=True).remove)
            return self.model(**{"input_ids": self.ids, "use_cache": False} | encoding).logits


def _first_input(args, kwargs):
    return next(iter((*args, *kwargs.values())), None)


def _error(x: Tensor, truth: Tensor) -> float:
    """‖x − truth‖ / ‖truth‖."""
    x, truth = x.double().flatten(), truth.to(x.device).double().flatten()
    return float((x - truth).norm() / truth.norm().clamp_min(1e-30))


def _alike(x: Tensor, truth: Tensor) -> bool:
    """Whether x is `truth` but for rounding, which may have passed through many blocks."""
    return x.shape == truth.shape and _error(x, truth) <= torch.finfo(x.dtype).eps ** 0.5


def _stream(run):
    """Path and number of returned things of the blocks, the blocks, and h_0..h_L [1, T, d]."""
    lists = {path: list(m) for path, m in run.model.named_modules() if isinstance(m, nn.ModuleList) and len(m)}
    entered, left = {}, {}

    def before(module, x):
        entered.setdefault(module, []).append(x.clone() if isinstance(x, Tensor) else x)

    def after(module, x, output):
        left[module] = output

    run(before, after, {block for blocks in lists.values() for block in blocks})
    problems = []
    for path, blocks in sorted(lists.items(), key=lambda item: -len(item[1])):
        if any(len(entered.get(block, ())) != 1 for block in blocks):
            continue
        h = [entered[block][0] for block in blocks]
        outputs = [first(left[block]) for block in blocks]
        shape = (1, N_TOKENS, *getattr(h[0], "shape", ())[2:])
        if len(shape) != 3 or any(getattr(x, "shape", None) != shape for x in (*h, *outputs)):
            continue
        jumps = [_error(x, y) for x, y in zip(h[1:], outputs, strict=False)]
        if max(jumps, default=0) > 0:
            l = jumps.index(max(jumps)) + 1
            problems.append(f"what enters block {l} of {path} is not what left block {l - 1}: off by {max(jumps):.1%}")
            continue
        output = left[blocks[0]]
        beside = len(output) - 1 if isinstance(output, tuple) else 0
        return {"blocks": path, "beside": beside}, blocks, [*h, outputs[-1]]
    raise ArchitectureError("; ".join(problems) or "no list of its modules passes one residual stream on")


def _check_sole_stream(run, blocks):
    """Whether h_L decides the logits alone: those of a changed run are those of its h_L after a clean one."""
    final = []

    def keep(module, x, output):
        final[:] = [first(output)] if module is blocks[-1] else []

    def put(module, x, output):
        return (final[0], *output[1:]) if isinstance(output, tuple) else final[0]

    changed = run(lambda module, x: x.roll(1, -1) if module is blocks[0] else None, keep, {blocks[0], blocks[-1]})
    logits = run(None, put, [blocks[-1]])
    if not _alike(logits, changed):
        off = _error(logits, changed)
        raise ArchitectureError(f"what leaves the last block does not alone make the logits: off by {off:.1%}")


def _tail(run, last_block, h):
    """Final norm, projection and unembedding, and what is done to the logits after it."""
    names = {module: path for path, module in run.model.named_modules()}
    head, calls, passed = run.model.get_output_embeddings(), [], []

    def after(module, x, output):
        if module is last_block:
            passed.append(module)
        elif passed and isinstance(x, Tensor) and isinstance(first(output), Tensor):
            calls.append((module, x, first(output)))

    logits = run(None, after, names.keys() - set(last_block.modules()) | {last_block})
    reads = [(x, z) for module, x, z in calls if module is head]
    if len(reads) != 1:
        raise ArchitectureError(f"its unembedding runs {len(reads)} times after the last block")
    (read, z), chain = reads[0], []
    while (scale := _scale(h, read)) is None:
        steps = [(module, y) for module, x, y in calls if module is not head and _alike(x, h) and not _alike(y, h)]
        steps.sort(key=lambda step: _scale(step[1], read) is None)
        if not steps or len(chain) == 2:
            path = " and ".join(chain) or "nothing"
            raise ArchitectureError(
                f"identity 2: {path} reads the last residual, but does not give {names[head]}'s input"
            )
        chain.append(names[steps[0][0]])
        h = steps[0][1]
    chain += [None, None]
    tail = {"unembed": names[head], "ln_final": chain[0], "project_out": chain[1], "logit_softcap": None}
    config = run.model.config
    if (after_head := _scale(z, logits)) is not None:
        return tail | {"logit_scale": _expression(scale * after_head, config)}
    for name, c in _numbers(config).items():
        if _alike(torch.tanh(z * scale / c) * c, logits):
            return tail | {"logit_scale": _expression(scale, config), "logit_softcap": name}
    off = f"off by {_error(z, logits):.1%}" if z.shape == logits.shape else f"{logits.shape[-1]} of {z.shape[-1]}"
    raise ArchitectureError(
        f"identity 2: the logits are not the output of {names[head]}, neither scaled nor soft-capped ({off})"
    )


def _scale(x, y):
    """The number s of y = s x; None where there is none."""
    if x.shape != y.shape:
        return None
    if torch.equal(x, y):
        return 1.0
    s = float((x.double() * y).sum() / x.double().square().sum())
    return s if s > 0 and _alike(x * s, y) else None


def _numbers(config):
    """The config's fields that may scale or cap something."""
    fields = config.get_text_config().to_dict().items()
    words = ("scal", "mult", "cap", "depth", "base", *_SIZES)
    numbers = {n: float(v) for n, v in fields if type(v) in (int, float) and any(word in n for word in words)}
    return {name: value for name, value in numbers.items() if value > 0}


_SIZES = ("hidden_size", "num_hidden_layers")  # which scale nothing by themselves


def _expression(value, config):
    """The expression of config fields that has this value; the value itself where there is none."""
    if value == 1.0:
        return 1.0
    numbers = _numbers(config)
    alone = {name: v for name, v in numbers.items() if name not in _SIZES}
    options = alone | {f"1 / {q}": 1 / w for q, w in alone.items()}
    for power in (1, 0.5):
        options |= {f"{p} / {q} ** {power}": v / w**power for p, v in alone.items() for q, w in numbers.items()}
    return next((name for name, option in options.items() if abs(option / value - 1) <= 1e-5), value)


def number(expression: float | str | None, config: PreTrainedConfig) -> float | None:
    """The value of an Architecture's scale or cap in this config."""
    if not isinstance(expression, str):
        return expression
    above, _, below = expression.rpartition(" / ")
    numbers, (name, _, power) = _numbers(config) | {"1": 1.0, "": 1.0}, below.partition(" ** ")
    return numbers[above] / numbers[name] ** float(power or 1) if above else numbers[name]


def _parts(run, blocks, residuals):
    """What of each block adds to the residual, in which order, and by which scale."""
    outputs, inside = [{} for _ in blocks], []
    paths = {module: path for block in blocks for path, module in block.named_modules()}

    def before(module, x):
        if module in numbers:
            inside[:] = [numbers[module]]

    def after(module, x, output):
        x = first(output)
        if module in numbers:
            inside.clear()
        elif inside and isinstance(x, Tensor) and x.is_floating_point() and x.numel() == residuals[0].numel():
            seen = outputs[inside[0]]
            x = x.reshape(residuals[0].shape).double().clone()  # some families add in place
            seen[paths[module]] = None if paths[module] in seen else x

    numbers = {block: l for l, block in enumerate(blocks)}
    run(before, after, paths)
    found, scales = [], []
    for l, candidates in enumerate(outputs):
        change = residuals[l + 1].double() - residuals[l].double()
        rounding = 2 * torch.finfo(residuals[l].dtype).eps * float(residuals[l].norm() + residuals[l + 1].norm())
        paths, scale, error = _addends(change, _distinct(candidates), found[-1:], rounding)
        if error > rounding:
            nearest = f"{' + '.join(paths)} is off by {error / float(change.norm()):.1%}" if paths else "there are none"
            return {"missing": f"no two modules of block {l} add up to what it adds: {nearest}"}
        found.append(paths)
        scales.append(scale)
    if max(scales) - min(scales) > 1e-5:
        return {"missing": f"its blocks scale what they add by {min(scales):g} to {max(scales):g}"}
    mixing, reading = _order(run, blocks, residuals, found)
    if len(set(reading)) > 1:
        return {"missing": "in some of its blocks the MLP reads what attention added, in others not"}
    parts = [
        paths if len(paths) == 2 else (paths[0], None) if mixes else (None, paths[0])
        for paths, mixes in zip(found, mixing, strict=True)
    ]
    scale = sum(scales) / len(scales)
    return {
        "parts": tuple(parts),
        "parallel": reading[:1] == [False],
        "residual_scale": _expression(scale, run.model.config) if abs(scale - 1) > 1e-5 else 1.0,
    }


def _distinct(candidates):
    """Outputs in the order in which they came; of equal ones that of the module nearest to the block."""
    kept = {}
    for path in sorted((path for path, x in candidates.items() if x is not None), key=lambda path: path.count(".")):
        if not any(torch.equal(candidates[path], x) for x in kept.values()):
            kept[path] = candidates[path]
    return {path: kept[path] for path in candidates if path in kept}


def _addends(change, candidates, likely, rounding):
    """(paths, scale, error) of the modules whose sum, scaled, is nearest to `change`; the `likely` ones first."""
    best = (), 1.0, float("inf")
    choices = [paths for paths in likely if candidates.keys() >= set(paths)]
    choices += [*((path,) for path in candidates), *combinations(candidates, 2)]
    for scaled in (False, True):
        for paths in choices:
            total = sum(candidates[path] for path in paths)
            scale = float((total * change).sum() / total.square().sum().clamp_min(1e-300)) if scaled else 1.0
            error = float((change - scale * total).norm())
            if error < best[2]:
                best = paths, scale, error
            if best[2] <= rounding and rounding < 1e-3 * float(change.norm()):
                return best
    return best


def _order(run, blocks, residuals, parts):
    """Whether the first part of each block mixes tokens, and of blocks with two whether the second reads the first."""
    owners = {block.get_submodule(path): (l, k) for l, block in enumerate(blocks) for k, path in enumerate(parts[l])}
    numbers = {block: l for l, block in enumerate(blocks)}

    def outputs(other_tokens, other_first):
        """Of every part, where every block reads the residual it always reads, or one with other tokens."""
        seen = {}

        def before(module, x):
            if module not in numbers:
                return None
            h = residuals[numbers[module]].clone()
            if other_tokens:
                h[:, :-1] = h[:, :-1].roll(1, -1)
            return h

        def after(module, x, output):
            if module in numbers:
                return None
            l, k = owners[module]
            x = first(output)
            seen[l, k] = x.clone()
            if not (other_first and k == 0):
                return None
            x = x + residuals[l].roll(1, -1).reshape(x.shape)
            return (x, *output[1:]) if isinstance(output, tuple) else x

        run(before, after, owners.keys() | numbers.keys())
        return seen

    clean, moved, shifted = outputs(False, False), outputs(True, False), outputs(False, True)
    last = [[seen[l, 0].view_as(residuals[0])[:, -1] for l in numbers.values()] for seen in (clean, moved)]
    mixing = [not _alike(*pair) for pair in zip(*last, strict=True)]
    reading = [not _alike(shifted[l, 1], clean[l, 1]) for l, paths in enumerate(parts) if len(paths) == 2]
    return mixing, reading


def _shortcuts(run, blocks, residuals, beside, logits):
    """Which ways of computing less give what the whole computation gives."""

    @contextmanager
    def beginning(l: int, h: Tensor, skip: bool) -> Iterator[dict]:
        passed = (h, *[None] * beside) if beside else h
        with ExitStack() as stack:
            for block in blocks[:l] if skip else ():
                stack.enter_context(mock.patch.object(block, "forward", lambda *_, **__: passed))
            yield {"before": lambda module, x: h, "modules": [blocks[l]]}

    def starts():
        for l in {len(blocks) // 2, len(blocks) - 1}:
            with beginning(l, residuals[l], skip=True) as hooks:
                yield run(**hooks), logits

    def grows():
        for l in {len(blocks) // 2, len(blocks) - 1}:
            rows = torch.cat([residuals[l], residuals[l].roll(1, -1)])
            with beginning(l, rows, skip=False) as hooks:
                truth = run(**hooks, input_ids=run.ids.expand(2, -1))
            with beginning(l, rows, skip=True) as hooks:
                yield run(**hooks), truth

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
