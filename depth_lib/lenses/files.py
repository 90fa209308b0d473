"""Lens files: published Jacobian lenses, tuned lenses, and our own; checked against the model that they are used with.

A lens is a dict, `Lens`; h_l enters block l.
"""

import hashlib
import io
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nnsight import TransformersModel

from ..files import path_of, writable_folder, write_beside, write_together
from ..hub import without_retries
from ..models.check import name_of
from ..models.errors import reason
from ..models.families import describe
from ..params import ParamsError, warn
from ..remote.server import say

_REMEDY = "use one made for this model, or fit one: dl.fit_lens(llm, texts)"
LARGEST_REQUEST = 2**29  # bytes: a request waits in NDIF's queue as one value of Redis


class LensError(ParamsError):
    """A lens cannot be read, or belongs to a different model; the message says what to do next."""


class Lens(dict[str, Any]):
    """A lens, as a dict: A_l h_l + b_l expresses h_l in the last layer's coordinates.

    - A [L, d, d], b [L, d]: float32
    - kind: "jacobian", "ridge" or "tuned"
    - unembedding: a hash of the matrix it was fitted with, or None
    """

    def __reduce_ex__(self, protocol):
        if protocol == 2:  # torch.save's, as of a Result: torch.load(weights_only=True) reads it
            return OrderedDict, (), None, None, iter(self.items())
        return Lens, ({**self},)

    def __repr__(self) -> str:
        n_layers, width = self["b"].shape
        return f"{self.get('kind', '')} lens of {n_layers} layers, width {width}".strip()

    def save(self, path: str | Path) -> Path:
        """Save the lens as a `.pt` file, which `load_lens` reads, and return the path.

        An existing file at this path with different content is renamed to `<name>.replaced-1`.

        Raises LensError for a path that does not end in .pt, or a folder that cannot be written to.
        """
        path = lens_path(path)
        write(path, published(self), write_beside)
        return path


def lens_path(path: str | Path) -> Path:
    """The path of a lens file in a folder that can be written; LensError if it is neither."""
    if Path(path).suffix != ".pt":
        raise LensError(f"the path of a lens must end in .pt, got {path}")
    path = path_of(path)
    return writable_folder(path.parent, LensError) / path.name


def published(lens: Mapping) -> dict[str, Any]:
    """A lens in the format of published Jacobian files, with A_0 and b besides."""
    first, *others = (matrix.clone() for matrix in lens["A"])
    J = dict(enumerate(others))
    stored = {"J": J, "source_layers": list(J), "d_model": lens["A"].shape[-1], "A_0": first}
    return stored | {key: lens[key] for key in ("b", "kind", "unembedding") if key in lens}


def write(path: Path, value: Any, put: Callable = write_together) -> None:
    """torch.save, to a file that appears whole or not at all; `put`: how it is written."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    path.parent.mkdir(parents=True, exist_ok=True)
    put({path: buffer.getvalue()})


def load_lens(source: str | Path, revision: str | None = None) -> Lens:
    """A lens from a file, a folder or the Hub, for `logit_lens(…, lens=)` and `answer_lens(…, lens=)`.

    >>> llm, texts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> fitted = dl.fit_lens(llm, texts, kind="ridge", path="lens.pt")
    >>> dl.load_lens("lens.pt")["kind"]
    'ridge'

    - source: a `.pt` file, either a published Jacobian lens or any lens from `fit_lens`; or a folder with a tuned lens
      (`params.pt` and `config.json`). On the Hub: `owner/name/path`, with `spaces/` before it for a Space
    - revision: branch, tag or commit on the Hub

    Published Jacobian files are indexed by the outputs of blocks: A_{l+1} = J[l]. They have no matrix for the
    embeddings, so A_0 = I, and a warning says so. Tuned lenses are indexed by inputs: A_l = I + W_l.

    Returns a Lens, as `fit_lens` does.

    Raises LensError for a file that is none of these, lacks a layer, or has values that are not finite. Whether it fits
    the model is checked when it is used.
    Source: Gurnee et al. 2026 (transformer-circuits.pub/2026/workspace); Belrose et al. 2023 (arXiv 2303.08112).
    Cost: no forward pass; 4 L d² bytes.
    """
    try:
        if str(source).endswith(".pt"):
            lens = _jacobian(_stored(source, revision), source)
        else:
            config = json.loads(_found(f"{source}/config.json", revision).read_bytes())
            lens = _tuned(_stored(f"{source}/params.pt", revision), config)
        return Lens(finite(lens, source))
    except LensError:
        raise
    except Exception as error:  # noqa: BLE001 (a dozen kinds, of pickles, JSON and shapes)
        problem = f"it has no {error}" if isinstance(error, KeyError) else "it is damaged, or something else"
    raise LensError(
        f"{source} is not a lens for all layers: {problem}; use a different one, or fit one: dl.fit_lens(llm, texts)"
    )


def _found(source, revision):
    """The path of a file, local or on the Hub."""
    path = path_of(source)
    if path.is_file():
        if revision:
            raise LensError(f"{source} is not on the Hub, so revision={revision!r} does not apply; leave it out")
        return path
    if str(source).count("/") < 2 or path.is_absolute() or path.parent.exists():
        raise LensError(f"{source} does not exist; use a lens's .pt file or folder, or owner/name/path on the Hub")
    from huggingface_hub import hf_hub_download

    try:
        *space, owner, name, file = str(source).split("/", 3 if str(source).startswith("spaces/") else 2)
        with without_retries(str(source)):
            kind = "space" if space else None
            return Path(hf_hub_download(f"{owner}/{name}", file, repo_type=kind, revision=revision))
    except Exception as error:  # noqa: BLE001 (a dozen kinds, of names, files and networks)
        problem = reason(error)
    raise LensError(
        f"{source} is neither a local file nor on the Hub ({problem}); use a path, or owner/name/path on the Hub"
    )


def _stored(source, revision):
    return torch.load(_found(source, revision), map_location="cpu", weights_only=True)


def _jacobian(stored, source):
    """The lens in a Jacobian file or in a checkpoint of a fit."""
    of_fit = "jacobian_sum" in stored
    J = {l: x / stored["n_done"] for l, x in stored["jacobian_sum"].items()} if of_fit else stored["J"]
    if "A_0" not in stored:
        warn(f"{source} has no matrix for the embeddings; layer 0 uses the logit lens")
    A_0 = stored["A_0"] if "A_0" in stored else torch.eye(len(J[0]))
    A = torch.stack([A_0.float(), *(J[l].float() for l in range(len(J)))])
    no_bias = torch.zeros(A.shape[:2], dtype=torch.float32)
    return {"A": A, "b": no_bias, "kind": "jacobian", "unembedding": None} | {
        key: stored[key] for key in ("b", "kind", "unembedding") if key in stored
    }


def _tuned(stored, config):
    """The lens in a tuned lens's parameters, whose translators give what is added to h_l."""
    layers, d = range(config["num_hidden_layers"]), config["d_model"]
    A = torch.stack([stored[f"{l}.weight"].float() + torch.eye(d) for l in layers])
    b = torch.stack([stored.get(f"{l}.bias", torch.zeros(d)).float() for l in layers])
    return {"A": A, "b": b, "kind": "tuned", "unembedding": config.get("unembed_hash")}


def finite(lens: Any, name: str | Path) -> Any:
    """The lens; LensError if a number is not finite."""
    if lens["A"].isfinite().all() and lens["b"].isfinite().all():
        return lens
    raise LensError(f"{name} has values that are not finite; fit it again, with the model in float32")


def check_lens(llm: TransformersModel, lens: Lens) -> None:
    """Raise LensError unless a lens has the model's depth, width and, if both are known, unembedding.

    In half precision rounding changes the hash, so a different unembedding is a warning.
    """
    if not isinstance(lens, Mapping) or not all(_is_real(lens.get(name)) for name in ("A", "b")):
        raise LensError(
            "a lens must be a dict with A [L, d, d] and b [L, d], float tensors; load a file with dl.load_lens(file)"
        )
    arch, there, here = describe(llm), lens.get("unembedding"), unembedding_hash(llm)
    check_size(lens, name_of(llm), arch.n_layers, arch.width)
    if there and here and there != here:
        message = f"the lens does not fit {name_of(llm)}: it was fitted with a different unembedding; {_REMEDY}"
        if llm.dtype.itemsize > 2:
            raise LensError(message)
        warn(f"{message} (unless the two differ only by rounding to {llm.dtype})")


def _is_real(value):
    return torch.is_tensor(value) and value.is_floating_point()


def check_size(lens: Mapping, name: str, n_layers: int, width: int) -> None:
    """Raise LensError unless a lens has this depth and width."""
    A, b = ([*lens[key].shape] for key in "Ab")
    if (A, b) != ([n_layers, width, width], [n_layers, width]):
        raise LensError(
            f"the lens does not fit {name}: it has A {A} and b {b}, but the model has {n_layers} layers of width "
            f"{width}; {_REMEDY}"
        )


def unembedding_hash(llm: TransformersModel) -> str | None:
    """The hash that tuned-lens keeps: of the unembedding's corners, printed with one digit. None if the weights are
    on a server.
    """
    weight = llm._module.get_output_embeddings().weight
    if weight.is_meta or not weight.is_floating_point():
        return None
    if len(weight) > 7 and 7 * weight.shape[1] > 1000:  # printing four rows and three gives the same text
        weight = torch.cat([weight[:4], weight[-3:]])
    corners = weight.detach().float().cpu().numpy()
    printed = np.array2string(corners, precision=1, threshold=1000, edgeitems=3, max_line_width=75)
    return hashlib.sha256(printed.encode()).hexdigest()


def translators(llm: TransformersModel, lens: Any, remote: bool | str) -> dict[str, torch.Tensor] | None:
    """`A` and `b` of a lens or its file; None without one.

    Raises LensError for a different model's lens, or one that is too large to send.
    """
    if lens is None:
        return None
    lens = load_lens(lens) if isinstance(lens, str | Path) else lens
    check_lens(llm, lens)
    finite(lens, "the lens")
    translators = {"A": lens["A"], "b": lens["b"]}
    if remote and remote != "local":
        n_bytes = sum(tensor.nbytes for tensor in translators.values())
        said = f"the lens has {n_bytes / 2**20:,.0f} MiB, which travel with each job"
        if n_bytes > LARGEST_REQUEST:
            raise LensError(
                f"{said}, but a server accepts {LARGEST_REQUEST / 2**20:.0f}; load the model on this machine"
            )
        say(said)
    return translators
