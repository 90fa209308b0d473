"""Probe 5: which residuals the answer's probability comes from (Sundararajan et al. 2017; Csordás et al. 2025, 3.4).

The plain version, for the output h of block l, F(l, x) being the summed probability of the answer's tokens where h is
replaced by x:

    b = h.mean(0)
    for k in range(256):
        x = (b + k / 256 * (h - b)).requires_grad_()
        igrads[l] += ((h - b) * autograd.grad(F(l, x), x)).sum(-1) / 256

Here the points are rows of a batch, as many as the tolerance needs (see quadrature.py). Without gradients, the integral
is the sum of the changes of F when one token alone takes a step of the path (`_increments`).
"""

import torch
from nnsight import TransformersModel

from ..data.tokens import answer_span
from ..models.check import arch_to_change
from ..params import warn
from ..remote.errors import JobFailed, NotReady
from ..remote.server import NO_GRADIENT, NO_GRADIENTS_THERE, method_there
from ..residual.budget import rows_of_logits, tokens_in_pass
from ..residual.quadrature import converged
from ..residual.ranks import from_rank_0, is_sharded
from ..residual.residual_stream import (
    final_residual,
    hidden_states,
    inputs,
    parts,
    rescaling,
    skip_head,
    start_at,
    with_hidden_states,
)
from ..residual.stream import read_blocks, stacked
from ..residual.unembedding import lens as unembed
from ..results.origin import with_origin
from ..results.result import Result
from ..session import run


@with_origin
def integrated_gradients(
    llm: TransformersModel,
    question: str,
    answer: str,
    quadrature: str | float = 0.01,
    remote: bool | str = False,
    budget: int | None = None,
    at: str = "block",
    method: str | None = None,
    max_nodes: int = 257,
    steps: int = 16,
) -> Result:
    """How much each token's residual stream after each block contributes to the answer's probability.

    >>> llm = dl.load_model("toy-4l")
    >>> gradients = dl.integrated_gradients(llm, "5 + 7 = ", "12")
    >>> gradients["igrads"].shape, bool((gradients["error"] <= 0.01).all())
    (torch.Size([4, 10]), True)

    igrads[l, t] = Σ_d (x − b)[t, d] · ∫₀¹ ∂F/∂x[t, d] dr along b + r (x − b). x is h_{l+1}, b its mean over the
    sequence, and F the sum of the probabilities of the answer's tokens.

    - llm: from `load_model`
    - question, answer: strings, tokenised together
    - quadrature: a tolerance, or "riemann" (256 left-endpoint steps, as in the papers). For a tolerance, nodes are
      added where the estimated error is largest, until the error is below the tolerance times max |igrads[l]|
    - remote: True for NDIF, or the address of a server
    - budget: tokens per forward pass
    - at: "block" (x is h_{l+1}), "attention" (a_l) or "mlp" (m_l); for the last two, everything after x is recomputed
    - method: "gradients", or "increments" (forward passes only); by default gradients, and increments on a server
      that returns no gradients
    - max_nodes: the largest number of nodes per block
    - steps: the number of increments; their error falls as steps⁻². In a mixture of experts, a step may send a token to
      different experts, so that F jumps. Increments include the jump and gradients do not, so the two may differ by
      more than `error`

    Returns:

    - igrads [L, T]: attributions
    - completeness [L]: Σ_t igrads − f_difference; 0 for an exact integral
    - f_difference [L]: F(x) − F(b)
    - error [L]: estimated error of a token's attribution, as a fraction of max |igrads[l]| (not for "riemann"). For
      increments, it is a bound that falls as 1 / steps
    - n_nodes or n_steps [L]: nodes, or steps of increments
    - tokens: T strings

    A warning names the blocks whose error is above the tolerance. Half precision is coarse: use float32.

    Raises ValueError for an argument with an invalid value or one that the method does not use, an answer that adds no
    tokens, or gradients that are not finite.
    Raises NotReady for method "gradients" on a server that returns none.
    Source: Sundararajan et al. 2017; Csordás et al. 2025, Figure 6.
    Cost: a forward pass, and for each block up to `max_nodes` forward and backward passes of the blocks after it.
    Increments take 2 T `steps` forward passes instead.
    """
    tolerance = 0.01 if quadrature == "riemann" else quadrature
    if isinstance(tolerance, str) or not 0 <= tolerance <= 1:
        raise ValueError(f'unknown quadrature {quadrature!r}; use "riemann" or a tolerance such as 0.01')
    for name, value, least in (("max_nodes", max_nodes, 9), ("steps", steps, 1)):  # 9: those `converged` begins with
        if value < least:
            raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    arch = arch_to_change(llm, at, whole="block", name="at=")
    ids, positions, tokens = answer_span(llm, question, answer)
    method = method_there(remote, method)
    if method == "increments" and quadrature == "riemann":
        raise ValueError('left-endpoint steps need gradients; use method="gradients", or steps=… instead of "riemann"')
    left_ends = 256 if quadrature == "riemann" else None
    unread = {"steps": steps != 16} if method == "gradients" else {"max_nodes": max_nodes != 257}
    unread |= {"max_nodes": max_nodes != 257} if left_ends else {}
    if names := [name for name, changed in unread.items() if changed]:
        by = f"quadrature={quadrature!r}" if left_ends else f"method={method!r}"
        raise ValueError(f"{names[0]} is not used with {by}; leave it out")
    arguments = (arch, ids, positions, list(range(arch.n_layers)), at)
    arguments += (steps if method == "increments" else left_ends, tolerance, budget, max_nodes, method)
    try:
        result = run(
            measure_integrated_gradients,
            llm,
            *arguments,
            remote=remote,
            over="layers",
            gives="L T: igrads; L: completeness f_difference",
        )
    except JobFailed as failed:
        if not NO_GRADIENT.search(str(failed)):
            raise
        raise NotReady(NO_GRADIENTS_THERE) from failed
    _warn_if_rough(result, tolerance, method)
    return Result("integrated_gradients" if at == "block" else f"{at}_gradients", result | {"tokens": tokens}, llm)


def _warn_if_rough(result, tolerance, method):
    """Warn about blocks whose error is above the tolerance."""
    rough = result.get("error", torch.zeros(1)) > tolerance
    if rough.any():
        blocks = rough.nonzero().flatten().tolist()
        finer = "max_nodes" if method == "gradients" else "steps"
        warn(
            f"the integrated gradients of blocks {blocks} have estimated errors of up to "
            f"{100 * result['error'][rough].max():.2g}% of the largest attribution: the answer's probability jumps "
            f"there, or rounding exceeds the tolerance {tolerance:.2g}; raise {finer} or quadrature, or widen the dtype"
        )


def measure_integrated_gradients(
    llm, arch, ids, answer, layers, at, steps, tolerance, budget, max_nodes=257, method="gradients", tick=None
):
    """Integrated gradients of the answer's probability at the output of each block, or at a_l or m_l.

    igrads[l, t] = Σ_d (x − b)[t, d] · ∫₀¹ ∂F/∂x[t, d] at b + r (x − b) dr. x is h_{l+1}, a_l or m_l [T, d], b its
    mean over the sequence, and F the sum of the probabilities of the answer's tokens. If x is a_l or m_l, what
    follows is recomputed.

    - ids: the T token ids of question and answer
    - answer: the places of the answer's tokens
    - layers: the blocks, ascending
    - at: "block", "attention" or "mlp"
    - steps: left ends of the path, or steps of increments; None: as many points as `tolerance` needs, at most max_nodes
    - budget: tokens per forward pass, or None
    - method: "gradients" or "increments"
    - tick(share): called with the share of work done

    Returns for each layer igrads [T], completeness, f_difference, n_nodes (or n_steps) and, except for left ends,
    error: see `integrated_gradients`.
    """
    results = []
    with torch.no_grad():
        with llm.trace(inputs(llm, arch, ids), use_cache=False) as tracer:
            blocks = list(read_blocks(tracer, llm, arch))  # h_l, a, m and h_{l+1} of each
    h = blocks[0][0][0]
    n_tokens = budget or tokens_in_pass(llm, arch, h, gradients=method == "gradients")
    n_rows = max(1, min(n_tokens // len(ids), rows_of_logits(llm, h) // len(answer)))
    for l in layers:
        path = _path(llm, arch, ids, answer, n_rows, l, at, *blocks[l])
        if method == "increments":
            found = _increments(path, steps)
        elif steps:
            v, f = path.sample(torch.tensor([*(k / steps for k in range(steps)), 1.0], dtype=torch.float64))
            found = {"integral": v[:-1].mean(0), "n_nodes": steps, "f": (f[0].item(), f[-1].item())}
        else:
            eps = torch.finfo(path.dtype).eps  # of the slopes' rounding, which more nodes do not lower
            found = converged(path.sample, tolerance, eps, max_nodes)
        f_b, f_x = found.pop("f")
        igrads = found.pop("integral")
        numbers = found | {"completeness": igrads.sum() - (f_x - f_b), "f_difference": f_x - f_b}
        results.append({"igrads": igrads} | {k: torch.as_tensor(x, dtype=torch.float32) for k, x in numbers.items()})
        if tick:
            tick(1 / len(layers))
    return stacked(results)


class Path:
    """x [T, d] at b + r (x − b), with r from 0 to 1, where x is a block's output or what a part of it adds.

    Block l reads (rest + x) · scale, in `dtype`. If attention's x enters the MLP of its own block (`within`), block
    l reads `rest`, and its attention adds x. answer: the places of its tokens; n_rows: points in a pass.
    """

    def __init__(self, llm, arch, ids, answer, n_rows, l, x, dtype, rest=0.0, scale=1.0, within=False):
        self.llm, self.arch, self.ids, self.answer, self.n_rows = llm, arch, ids, answer, n_rows
        self.l, self.x, self.b, self.dtype = l, x, x.mean(0, keepdim=True), dtype
        self.rest, self.scale, self.within = rest, scale, within

    def sample(self, r):
        """The slopes Σ_d (x − b) · ∂F/∂x [R, T] and F [R] at points r [R]."""
        places = r.float()[:, None].expand(-1, len(self.ids)).split(self.n_rows)
        slopes, f = zip(*(self._passed(some, with_gradients=True) for some in places), strict=True)
        # all ranks must decide alike whether to take more points
        return from_rank_0((torch.cat(slopes), torch.cat(f)), is_sharded(self.llm))

    def probability(self, places):
        """F [R] where each token is at its own place r of the path, [R, T]."""
        return torch.cat([self._passed(some, with_gradients=False)[1] for some in places.split(self.n_rows)])

    def _passed(self, places, with_gradients):
        llm, arch, step, slopes = self.llm, self.arch, self.x - self.b, None
        with torch.set_grad_enabled(with_gradients):
            with llm.trace(inputs(llm, arch, self.ids, len(places)), use_cache=False):
                x = (self.b + places.to(step.device)[..., None] * step).requires_grad_(with_gradients)
                h = self.rest.expand_as(x) if self.within else (self.rest + x) * self.scale
                h = h.to(self.dtype)
                start_at(llm, arch, self.l, h)  # l = L skips all blocks: h is the final residual
                if self.within:
                    _attend(llm.blocks[self.l], arch, x)
                if self.l < arch.n_layers:
                    h = final_residual(llm, arch)
                f = _answer_probability(llm, arch, h, self.ids, self.answer)
                if with_gradients:
                    slopes = (torch.autograd.grad(f.sum(), x)[0] * step).sum(-1).cpu()
                f = f.detach().cpu()
                skip_head(llm, arch, h.detach())
        return slopes, f


def _path(llm, arch, ids, answer, n_rows, l, at, h, a, m, after):
    """The path of what leaves block l, or of its a or m. h, a, m, after: of block l, as `read_blocks` gives them."""
    common = llm, arch, ids, answer, n_rows
    if at == "block":
        return Path(*common, l + 1, after[0].float(), h.dtype)
    before = h.to(after.device).float()
    x, others = (a, m) if at == "attention" else (m, a)
    if at == "attention" and not arch.parallel and all(parts(llm.blocks[l], arch).values()):
        return Path(*common, l, x[0], h.dtype, before[0], within=True)  # the block's own MLP reads a, too
    scale = float(rescaling(before + a + m, after.float())) if arch.rescales else 1.0
    return Path(*common, l + 1, x[0], h.dtype, (before + others)[0], scale)


def _attend(block, arch, x):
    """Let x [R, T, d] be all that attention adds in a block."""
    for module, scale, bias in parts(block, arch)["attention"]:  # a = Σ (scale · output + bias)
        output = module.output
        added = hidden_states(output)  # a module may give rows and tokens as one axis
        of_module = (x if bias is None else x - bias) / scale
        module.output = with_hidden_states(output, of_module.to(added).reshape(added.shape))
        x = torch.zeros_like(x)  # the first module's output is all of it


def _answer_probability(llm, arch, final, ids, answer):
    """F [R]: the summed probability of the answer's true tokens, from final residuals [R, T, d]."""
    predicting = final[:, [place - 1 for place in answer]]
    y = unembed(llm, arch, predicting.flatten(0, 1)).softmax(-1).unflatten(0, predicting.shape[:2])
    true = torch.tensor([ids[place] for place in answer], device=y.device)
    return y.gather(2, true[:, None].expand(len(y), -1, 1)).sum((1, 2))


def _increments(path, steps):
    """The change of F when token t alone takes each of K steps, summed over the steps.

    Each step is measured from where all tokens are before it, and to where they are after it; the mean of both
    converges as K⁻². `error` is half of their difference, for the worst token: a bound, which falls as 1 / K.
    """
    n, r = len(path.ids), torch.arange(steps + 1, dtype=torch.float32)[:, None, None] / steps
    alone, place = torch.eye(n, dtype=torch.bool), r.expand(-1, n, n)
    f = path.probability(r[:, 0].expand(-1, n)).double()
    ahead = path.probability(torch.where(alone, place[1:], place[:-1]).flatten(0, 1)).view(steps, n) - f[:-1, None]
    behind = f[1:, None] - path.probability(torch.where(alone, place[:-1], place[1:]).flatten(0, 1)).view(steps, n)
    integral, error = (ahead + behind).sum(0) / 2, (ahead - behind).sum(0).abs().max() / 2
    found = {"integral": integral.float(), "n_steps": steps, "f": (f[0].item(), f[-1].item())}
    return found | {"error": error / integral.abs().max().clamp_min(1e-30)}
