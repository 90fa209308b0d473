"""fit_lens: the Jacobian lens, or a ridge of the last residual on each, text by text."""

import hashlib
import io
import json
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from nnsight import TransformersModel

from ..data.tokens import tokenize
from ..files import write_together
from ..model_maps.regression import accumulate, solve
from ..models.check import name_of, verified_arch
from ..params import not_among
from ..remote.server import method_there
from ..residual.budget import check_budget
from ..residual.states import states_of_sequences
from ..session import run
from .files import Lens, LensError, finite, unembedding_hash
from .jacobian import SKIPPED, measure_jacobian

N_TOKENS = 128  # of a text, as for published lenses
_EVERY = 30.0  # seconds between two checkpoints, and as many more for each 256 MiB of sums


def fit_lens(
    llm: TransformersModel,
    texts: Sequence[str],
    kind: str = "jacobian",
    path: str | Path | None = None,
    remote: bool | str = False,
    method: str | None = None,
    budget: int | None = None,
) -> Lens:
    """A translation of every h_l into the last layer's coordinates, for `logit_lens(…, lens=)`.

    >>> llm, texts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> dl.fit_lens(llm, texts, kind="ridge")["A"].shape
    ridge lens, text 2 of 3 ...
    torch.Size([4, 128, 128])

    kind "jacobian": A_l = mean over texts of (1/|V|) Σ_{t ∈ V} Σ_{t' ∈ V} ∂h_{L,t'} / ∂h_{l,t}, b = 0; V: all tokens
    but the first 16 and the last. About 100 texts suffice, published lenses have up to 1,000. Load the model in
    float32. "ridge": A_l, b_l = argmin Σ_tokens ‖A_l h_l + b_l − h_L‖² / ‖h_L‖² + λ ‖A_l − 1‖², the λ that is best on
    every tenth text; the first token is left out, an outlier of 100 × the others' norm. It minimises the error of h_L,
    not the KL.

    texts: strings, of which the first 128 tokens are used; those of under 18 (ridge: 2) are left out with a warning.
    path: a `.pt` file, written whole or not at all, which `load_lens` reads, and TransformerLens (its matrices); every
    half minute (of wide models more rarely) `<path>.fit` has what is done, so that an interrupted call, made again,
    goes on at the next text.
    method, of Jacobians: "gradients", or "increments", central differences by forward passes alone; None: gradients
    here, on a server where the key has NDIF's tag "trusted". budget: tokens in one pass (default: what the device is
    fast with).
    After 1, 2, 4, 8 … texts (a ridge: once tokens outnumber features) the change of the lens is printed.

    Returns `A` [L, d, d], `b` [L, d] float32, `kind` and `unembedding`, a hash. LensError for an unknown kind, if no
    text is long enough (ridge: two), or for numbers that are not finite.
    Cost of a text of T tokens: gradients 2 passes and d backward passes; increments 2 d L rows, each from its block on;
    ridge 1 pass. Memory: 4 L d² bytes (SmolLM2-135M: 40 MB) five times, with gradients also a batch's activations;
    ridge 32 L d² bytes (320 MB).
    A server sends the same 4 L d² bytes a text; in NDIF's sandbox increments also move 4 d L T d values across its
    socket: practical for toys only.
    Sources: Gurnee et al. 2026 (transformer-circuits.pub/2026/workspace), the estimator of their reference code; ridge:
    Belrose et al. 2023 (arXiv 2303.08112) in closed form.
    """
    if problem := not_among(("jacobian", "ridge"), "kind", kind):
        raise LensError(problem)
    fewest, shortest = (1, SKIPPED + 2) if kind == "jacobian" else (2, 2)
    all_ids = tokenize(llm, texts)
    long = [ids[:N_TOKENS] for ids in all_ids if len(ids) >= shortest]
    if len(long) < fewest:
        raise LensError(f"a {kind} lens needs {fewest} texts or more, of at least {shortest} tokens; give longer ones")
    if len(long) < len(all_ids):
        warnings.warn(f"{len(all_ids) - len(long)} texts of under {shortest} tokens are left out", stacklevel=2)
    method = method_there(remote, method) if kind == "jacobian" else None
    made_from = {"kind": kind, "unembedding": unembedding_hash(llm), "method": method}
    made_from["texts"] = hashlib.sha256(json.dumps(long).encode()).hexdigest()
    fewest_told = 1 if method else 1 + verified_arch(llm).width // N_TOKENS  # before, a ridge is mostly its λ
    check_budget(budget)
    if path and Path(path).suffix != ".pt":
        raise LensError(f"{path} is not a lens file; the path must end in .pt")
    of_model = {"model": _model(llm), "dtype": str(llm.dtype)} if path else {}
    done, lens, saved = {"n_done": 0, "sums": None}, None, time.monotonic()
    unfinished = Path(f"{path}.fit")
    if path and unfinished.is_file() and (stored := torch.load(unfinished)).items() >= (made_from | of_model).items():
        done = stored
        print(f"{unfinished}: {done['n_done']} texts are done")
    for n, ids in enumerate(long[done["n_done"] :], done["n_done"] + 1):
        sums = _with_text(done["sums"], llm, ids, n, method, budget, remote)
        done = made_from | of_model | {"n_done": n, "sums": sums}
        if (n >= fewest_told and n & (n - 1) == 0) or n == len(long):
            before, lens = lens, _lens(done)
            print(f"{kind} lens, text {n} of {len(long)}{_change(before, lens)}", flush=True)
        pause = _EVERY * (1 + done["sums"].nbytes / 2**28)
        if path and (n == len(long) or time.monotonic() > saved + pause):
            _write(unfinished, done)
            saved = time.monotonic()
    found = finite(lens or _lens(done), "the lens")
    lens = Lens(A=found["A"], b=found["b"], kind=kind, unembedding=made_from["unembedding"])
    if path:
        J = {l: matrix.clone() for l, matrix in enumerate(lens["A"][1:])}
        published = {"J": J, "source_layers": list(J), "d_model": lens["A"].shape[-1], "n_prompts": len(long)}
        _write(path, published | {"A_0": lens["A"][0].clone(), "b": lens["b"]} | made_from)
        unfinished.unlink(missing_ok=True)
    return lens


def _model(llm):
    """What tells a model from another: the sum of each weight, or its name where the weights are on a server."""
    sums = [
        None if weight.is_meta else weight.detach().sum(dtype=torch.float64).item()
        for weight in llm._module.parameters()
    ]
    return hashlib.sha256(json.dumps([name_of(llm), sums]).encode()).hexdigest()


def _with_text(sums, llm, ids, n, method, budget, remote):
    """The sums with text n: of Jacobians [L, d, d], or for the ridge of moments of (h_l, 1) and h_L, to fit with or,
    every tenth, to choose λ [2, L, 1, d + 1, 2 d + 1]."""
    arch = verified_arch(llm)
    if method:
        A = run(measure_jacobian, llm, arch, ids, budget, method, remote=remote, label=f"text {n}")["A"]
        return A if sums is None else sums + A
    d, layers = arch.width, list(range(arch.n_layers + 1))
    (h,) = run(states_of_sequences, llm, arch, [ids], layers, "residual", remote=remote)["states"]
    if sums is None:
        sums = torch.zeros(2, arch.n_layers, 1, d + 1, 2 * d + 1, dtype=torch.float64)
    accumulate(sums[int(n % 10 == 2)], h[:-1, 1:].float(), h[-1:, 1:].float())
    return sums


def _lens(done):
    """A and b of the texts that are done: of the ridge with the best λ, where A − 1 and b, of h_L − h_l, are solved
    for."""
    sums = done["sums"]
    if done["kind"] == "jacobian":
        return {"A": sums / done["n_done"], "b": torch.zeros(sums.shape[:2], dtype=torch.float32)}
    d, of_layers = sums.shape[3] - 1, []
    for fit, choose in sums.squeeze(2).unbind(1):
        fit, choose = (torch.cat([m[:, : d + 1], m[:, d + 1 :] - m[:, :d]], 1) for m in (fit, choose))
        solve(fit, choose)
        of_layers.append(fit[:, d + 1 :].float())
    weights = torch.stack(of_layers)
    return {"A": weights[:, :d].mT + torch.eye(d, dtype=torch.float32), "b": weights[:, d]}


def _change(before, lens):
    """In words: ‖A − A before‖ / ‖A‖, the mean over layers."""
    if before is None:
        return ""
    change = (lens["A"] - before["A"]).norm(dim=(1, 2)) / lens["A"].norm(dim=(1, 2))
    return f": changed by {change.mean():.1%}"


def _write(path, value):
    """torch.save, to a file that appears whole or not at all."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_together({Path(path): buffer.getvalue()})
