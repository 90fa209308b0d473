"""Lenses as files: published Jacobian lenses, tuned lenses, and our own; checked against the model they are for.

A lens is a dict: `A` [L, d, d] and `b` [L, d], float32, so that A_l h_l + b_l is in the last layer's coordinates (h_l
enters block l); `kind`; `unembedding`, a hash of the matrix it was fitted with, or None.
"""

import hashlib
import io
import json
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from nnsight import TransformersModel

from ..files import write_together
from ..hub import without_retries
from ..models.check import name_of
from ..models.families import describe
from ..params import ParamsError

Lens = Mapping[str, torch.Tensor | str | None]


class LensError(ParamsError):
    """A lens that cannot be read, or is another model's; the message is one line and ends with the next step."""


def load_lens(source: str | Path, revision: str | None = None) -> dict[str, torch.Tensor | str | None]:
    """A lens from a file, a folder or the Hub, for `logit_lens(…, lens=)` and `answer_lens(…, lens=)`.

    >>> llm, texts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> fitted = dl.fit_lens(llm, texts, kind="ridge", path="lens.pt")
    ridge lens, text 1 of 3 ...
    >>> dl.load_lens("lens.pt")["kind"]
    'ridge'

    source: a `.pt` file with a Jacobian lens (published, a checkpoint of a fit, or what `fit_lens` wrote), or a folder
    with a tuned lens, `params.pt` and `config.json`; on this machine, or on the Hub as `owner/name/path/in/it`, with
    `spaces/` before it for a Space, such as "spaces/AlignmentResearch/tuned-lens/lens/gpt2", or
    "neuronpedia/jacobian-lens/gpt2-small/jlens/Salesforce-wikitext/gpt2_jacobian_lens.pt".

    Published Jacobian files number the outputs of blocks: A_{l+1} = J[l]. They have none for the embeddings; there the
    logit lens is left as it is, A_0 = 1, and a warning says so. Tuned lenses number inputs: A_l = 1 + W_l, b_l = c_l.
    Returns a dict with `A` [L, d, d], `b` [L, d] float32, `kind` and `unembedding`. LensError for a file that is none
    of these, lacks a layer, has matrices of different widths or is not finite. Whether it is the model's own is checked
    where it is used: its layers, its width, and its unembedding where the file has a hash of it.
    Cost: no pass; 4 L d² bytes. Sources: Gurnee et al. 2026 (transformer-circuits.pub/2026/workspace); Belrose et al.
    2023 (arXiv 2303.08112).
    """
    try:
        if str(source).endswith(".pt"):
            stored = torch.load(_found(source, revision), map_location="cpu", weights_only=True)
            return finite(_jacobian(stored, source), source)
        config = json.loads(Path(_found(f"{source}/config.json", revision)).read_text(encoding="utf-8"))
        stored = torch.load(_found(f"{source}/params.pt", revision), map_location="cpu", weights_only=True)
        return finite(_tuned(stored, config), source)
    except KeyError as missing:
        problem = f"it has no {missing}"
    except (pickle.UnpicklingError, RuntimeError, TypeError, EOFError, json.JSONDecodeError) as error:
        problem = str(error).strip().partition("\n")[0]
    raise LensError(f"{source} is no lens of all layers: {problem}; take another, or fit one: dl.fit_lens(llm, texts)")


def finite(lens: Lens, name: str | Path) -> Lens:
    """The lens; LensError if a number is not finite."""
    if not (lens["A"].isfinite().all() and lens["b"].isfinite().all()):
        raise LensError(f"{name} has numbers that are not finite; fit it again, with the model in float32")
    return lens


def check_lens(llm: TransformersModel, lens: Lens) -> None:
    """LensError unless a lens has the model's layers and width and, where both are here, its unembedding.

    In half precision, whose rounding changes the hash, another unembedding is a warning.
    """
    arch = describe(llm)
    wanted, found = (arch.n_layers, arch.width, arch.width), tuple(lens["A"].shape)
    there, here = lens.get("unembedding"), unembedding_hash(llm)
    if found != wanted:
        problem = f"translates {found[0]} layers of width {found[-1]}, not {wanted[0]} of {wanted[1]}"
    elif there and here and there != here:
        problem = "was fitted with another unembedding"
    else:
        return
    message = f"the lens is not {name_of(llm)}'s, it {problem}; take its own, or fit one: dl.fit_lens(llm, texts)"
    if found != wanted or llm.dtype.itemsize > 2:
        raise LensError(message)
    warnings.warn(f"{message} (unless it is rounding to {llm.dtype} that made the two differ)", stacklevel=3)


def unembedding_hash(llm: TransformersModel) -> str | None:
    """The hash of the unembedding that tuned-lens keeps: of its corners, printed with one digit. None if the weights
    are not here."""
    weight = llm._module.get_output_embeddings().weight
    if weight.is_meta or not weight.is_floating_point():
        return None
    corners = weight.detach().float().cpu().numpy()
    printed = np.array2string(corners, precision=1, threshold=1000, edgeitems=3, max_line_width=75)
    return hashlib.sha256(printed.encode()).hexdigest()


def artifact(lens: Lens, n_texts: int) -> dict:
    """A lens as published files have it, with A_0, b and more beside.

    TransformerLens and the reference package read J alone: not b, which a Jacobian lens does not have.
    """
    first, *others = lens["A"].unbind()
    published = {"J": dict(enumerate(map(torch.clone, others))), "n_prompts": n_texts, "d_model": len(first)}
    ours = {key: value for key, value in lens.items() if key != "A"}
    return published | {"source_layers": list(published["J"]), "A_0": first.clone()} | ours


def write_tensors(path: Path, value: Mapping) -> None:
    """torch.save, to a file that appears whole or not at all."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    write_together({path: buffer.getvalue()})


def _jacobian(stored, source):
    """The lens in a Jacobian artifact or checkpoint, published or ours."""
    if "jacobian_sum" in stored:
        stored["J"] = {l: total / stored["n_done"] for l, total in stored["jacobian_sum"].items()}
    matrices = [stored["J"][l] for l in range(len(stored["J"]))]
    if "A_0" not in stored:
        warnings.warn(f"{source} has no matrix for the embeddings: layer 0 is read by the logit lens", stacklevel=3)
    A = torch.stack([stored.get("A_0", torch.eye(len(matrices[0]))).float(), *map(torch.Tensor.float, matrices)])
    b = stored.get("b", torch.zeros(A.shape[:2], dtype=torch.float32))
    return {"A": A, "b": b, "kind": stored.get("kind", "jacobian"), "unembedding": stored.get("unembedding")}


def _tuned(stored, config):
    """The lens in the parameters of a tuned lens, whose translators give what is added to h_l."""
    d, layers = config["d_model"], range(config["num_hidden_layers"])
    A = torch.stack([stored[f"{l}.weight"].float() + torch.eye(d) for l in layers])
    none = torch.zeros(d)
    b = torch.stack([stored.get(f"{l}.bias", none).float() for l in layers])
    return {"A": A, "b": b, "kind": "tuned", "unembedding": config.get("unembed_hash")}


def _found(source, revision):
    """Where a file is on this machine, which is here already or comes from the Hub."""
    path = Path(source).expanduser()
    if path.is_file():
        return path
    *space, owner, name, file = str(source).split("/", 3 if str(source).startswith("spaces/") else 2)
    try:
        from huggingface_hub import hf_hub_download

        with without_retries(str(source)):
            return hf_hub_download(f"{owner}/{name}", file, repo_type="space" if space else None, revision=revision)
    except Exception as error:  # noqa: BLE001 (a dozen kinds, of names, files and networks)
        reason = str(error).strip().partition("\n")[0]
    raise LensError(f"{source} is not here, and the Hub has none ({reason}); give a path, or owner/name/path/in/it")
