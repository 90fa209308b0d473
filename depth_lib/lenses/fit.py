"""fit_lens: the Jacobian lens, or a ridge of the last residual on each, text by text."""

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from nnsight import TransformersModel

from ..data.tokens import tokenize
from ..files import write_beside
from ..models.check import arch_to_change, model_hash, verified_arch
from ..params import not_among, warn
from ..progress import steps
from ..remote.errors import JobFailed
from ..remote.server import NO_GRADIENT
from ..residual.budget import check_budget
from ..residual.states import states
from ..session import run
from .files import Lens, LensError, finite, lens_path, published, unembedding_hash, write
from .jacobian import SKIPPED, measure_jacobian
from .regression import best, moments

NO_GRADIENTS = (
    "the server's sandbox returns no gradients; read a published lens (dl.load_lens), fit with the weights on this "
    'machine, or use kind="ridge"'
)
N_TOKENS = 128  # of a text, as for published lenses
_EVERY = 30.0  # seconds between two checkpoints, and as many more for each 256 MiB of sums


def fit_lens(
    llm: TransformersModel,
    texts: Sequence[str],
    kind: str = "jacobian",
    path: str | Path | None = None,
    remote: bool | str = False,
    budget: int | None = None,
) -> Lens:
    """A map from every h_l to the last layer's coordinates, for `logit_lens(…, lens=)`.

    >>> llm, texts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> dl.fit_lens(llm, texts, kind="ridge")["A"].shape
    torch.Size([4, 128, 128])

    "jacobian": A_l is the mean over texts of (1/|V|) Σ_{t ∈ V} Σ_{t' ∈ V} ∂h_{L,t'} / ∂h_{l,t}, and b = 0. V leaves out
    the first 16 tokens and the last. "ridge": A_l, b_l minimise Σ ‖A_l h_l + b_l − h_L‖² / ‖h_L‖² + λ ‖A_l − I‖² over
    all tokens but the first. λ is chosen on every tenth text.

    - llm: from `load_model`, preferably in float32: half precision rounds the lens and is slower on most CPUs
    - texts: list of strings; the first 128 tokens of each are used, and texts under 18 tokens (ridge: 2) are left
      out
    - kind: "jacobian" or "ridge"
    - path: a `.pt` file to write; a file that is already there is renamed. If the fit is interrupted, rerun the call
      to resume it
    - remote: True for NDIF, or the address of a server
    - budget: tokens per forward pass

    Returns a Lens:

    - A [L, d, d], b [L, d]: float32
    - kind: as passed
    - unembedding: a hash of the model's unembedding
    - save(path): writes the file that `path=` would

    A usable Jacobian lens takes about 100 texts.

    Raises LensError for an unknown kind, if no text is long enough, for numbers that are not finite, and for a Jacobian
    lens on a server that returns no gradients.
    Source: Gurnee et al. 2026 (transformer-circuits.pub/2026/workspace); ridge: Belrose et al. 2023 (arXiv
    2303.08112).
    Cost: one forward pass per text, and, for "jacobian", d backward passes as well. Memory: 20 L d² bytes, ridge 32 L
    d² bytes.
    """
    if problem := not_among(("jacobian", "ridge"), "kind", kind):
        raise LensError(problem)
    fewest, shortest = (1, SKIPPED + 2) if kind == "jacobian" else (2, 2)
    arch_of = arch_to_change if kind == "jacobian" else verified_arch
    arch_of(llm)  # before the texts are tokenised
    all_ids = tokenize(llm, texts)
    long = [ids[:N_TOKENS] for ids in all_ids if len(ids) >= shortest]
    if len(long) < fewest:
        name = "Jacobian" if kind == "jacobian" else kind
        of = f"{fewest} text{'s' * (fewest > 1)} of {shortest} or more tokens"
        raise LensError(f"a {name} lens needs at least {of}; use longer texts")
    if len(long) < len(all_ids):
        warn(f"{len(all_ids) - len(long)} texts with fewer than {shortest} tokens are left out")
    made_from = {"kind": kind, "unembedding": unembedding_hash(llm)}
    made_from["texts"] = hashlib.sha256(json.dumps(long).encode()).hexdigest()
    check_budget(budget)
    path = lens_path(path) if path else None  # before hours of fitting
    of_model = {"model": model_hash(llm)} if path else {}
    done: dict[str, Any] = {"n_done": 0, "sums": None}
    saved = time.monotonic()
    unfinished = Path(f"{path}.fit")
    if path and unfinished.is_file() and (stored := torch.load(unfinished)).items() >= (made_from | of_model).items():
        done = stored
        print(f"{unfinished}: {done['n_done']} texts are done")
    for n, ids in enumerate(steps(long[done["n_done"] :], f"{kind} lens"), done["n_done"] + 1):
        sums = _with_text(done["sums"], llm, arch_of(llm), ids, n, kind, budget, remote)
        done = made_from | of_model | {"n_done": n, "sums": sums}
        pause = _EVERY * (1 + done["sums"].nbytes / 2**28)
        if path and (n == len(long) or time.monotonic() > saved + pause):
            write(unfinished, done)
            saved = time.monotonic()
    found = finite(_lens(done), "the lens")
    lens = Lens(A=found["A"], b=found["b"], kind=kind, unembedding=made_from["unembedding"])
    if path:
        write(path, published(lens) | {"n_prompts": len(long)} | made_from, write_beside)
        unfinished.unlink(missing_ok=True)
    return lens


def _with_text(sums, llm, arch, ids, n, kind, budget, remote):
    """The sums with text n: Jacobians [L, d, d], or moments of (h_l, 1) and h_L for the ridge.

    The ridge's moments [2, L, d + 1, 2 d + 1] are for fitting and, for every tenth text, for choosing λ.
    """
    if kind == "jacobian":
        try:
            how = {"remote": remote, "gives": "L D D: A", "label": f"text {n}"}
            A = run(measure_jacobian, llm, arch, ids, budget, **how)["A"]
        except JobFailed as failed:
            if not NO_GRADIENT.search(str(failed)):
                raise
            raise LensError(NO_GRADIENTS) from failed
        return A if sums is None else sums + A
    d = arch.width
    h = run(states, llm, arch, ids, "residual", remote=remote, gives="L+1 T D: states")["states"][:, 1:].float()
    if sums is None:
        sums = torch.zeros(2, arch.n_layers, d + 1, 2 * d + 1, dtype=torch.float64)
    for l in range(arch.n_layers):
        sums[int(n % 10 == 2), l] += moments(h[l], h[-1])
    return sums


def _lens(done):
    """A and b from the texts so far; for the ridge with the best λ."""
    sums = done["sums"]
    if done["kind"] == "jacobian":
        return {"A": sums / done["n_done"], "b": torch.zeros(sums.shape[:2], dtype=torch.float32)}
    d, of_layers = sums.shape[2] - 1, []
    for of_layer in sums.unbind(1):
        added = torch.cat([of_layer[..., : d + 1], of_layer[..., d + 1 :] - of_layer[..., :d]], -1)  # of h_L − h_l
        of_layers.append(best(*added).float())
    weights = torch.stack(of_layers)
    return {"A": weights[:, :d].mT + torch.eye(d, dtype=torch.float32), "b": weights[:, d]}
