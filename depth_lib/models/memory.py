"""What this machine can do for a model: its memory, devices, dtypes and quantisation, asked before any download."""

import re
from dataclasses import dataclass, replace

import psutil
import torch
from accelerate import init_empty_weights
from transformers import AutoConfig
from transformers.utils import is_bitsandbytes_available

from ..hub import without_retries
from ..probes.ranks import from_rank_0
from .errors import ModelError, reason
from .families import auto_class

SPREADS = ("auto", "balanced", "balanced_low_0", "sequential")  # accelerate's ways to spread blocks over devices
QUANTIZATIONS = {"8bit": 1.0, "4bit": 0.5625}  # bytes a weight of a block; 4-bit ones have a float32 scale for each 64
_ROOM = 1.02  # buffers, and what a process needs besides


class DoesNotFit(ModelError):
    """A model needs more memory than there is; the message says how much, and what would fit."""


@dataclass(frozen=True)
class Weights:
    """How many weights a model has: those that can be quantised (its blocks' linear layers), and the others."""

    linear: int
    other: int
    method: str | None = None  # by which the checkpoint itself is quantised (awq, gptq, fp8 …)
    width: float | None = None  # bytes of a linear weight there

    def bytes(self, dtype: str, quantization: str | None = None) -> int:
        """What they take, held in `dtype`, or quantised as asked for or as the checkpoint is."""
        width = getattr(torch, dtype).itemsize
        return int((self.linear * (self.width or QUANTIZATIONS.get(quantization, width)) + self.other * width) * _ROOM)


def weights_of(source: str, revision: str | None = None) -> Weights | None:
    """Count a model's weights from its config.

    None where there is no config, as for a GGUF file (loading then raises), or where it does not say how many bits the
    checkpoint's weights have.
    """
    try:
        with without_retries(source):
            config = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)
        with init_empty_weights():
            model = auto_class(config).from_config(config)
    except Exception:  # noqa: BLE001 (no network, no such model, a family that transformers does not know)
        return None
    model.tie_weights()
    linears = {module for module in model.modules() if isinstance(module, torch.nn.Linear)}
    linear = sum(module.weight.numel() for module in linears - {model.get_output_embeddings()})
    weights = Weights(linear, model.num_parameters() - linear)
    quantized = getattr(config, "quantization_config", None)
    return _as_quantized(weights, quantized) if quantized else weights


def _as_quantized(weights, config):
    """The weights of a checkpoint that is quantised itself."""
    method = config.get("quant_method", "")
    if method == "bitsandbytes":
        width = QUANTIZATIONS["4bit" if config.get("load_in_4bit") else "8bit"]
    elif bits := 8 if "fp8" in method else config.get("bits"):
        group = config.get("group_size") or -1
        width = bits / 8 + (2.5 / group if group > 0 else 0)  # a group has a scale and a zero
    else:
        return None
    return replace(weights, method=method, width=width)


def free_bytes(device_map: str | None, quantization: str | None = None, n_ranks: int = 1) -> tuple[int, str]:
    """The free memory that a device_map leads to, and where it is; quantised weights stay off the CPU.

    n_ranks: of GPUs that each hold an equal share of every layer; the fullest of them decides.
    """
    gpus = [torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())]
    ram = psutil.virtual_memory().available
    if n_ranks > 1 and gpus:
        return n_ranks * min(gpus[:n_ranks]), f"on {n_ranks} GPUs that share each layer"
    one = re.fullmatch(r"cuda(?::(\d+))?", device_map or "")
    if device_map == "cpu" or not gpus:
        return ram, "in this machine's memory"
    if device_map is None or one:
        index = int(one[1] or 0) if one else 0
        return gpus[min(index, len(gpus) - 1)], f"on GPU {index}"
    where = f"on {len(gpus)} GPU{'s' if len(gpus) > 1 else ''}"
    return (sum(gpus), where) if quantization else (sum(gpus) + ram, f"{where} and the CPU")


def check_fits(
    source: str, revision: str | None, dtype: str, quantization: str | None, device_map: str | None, n_ranks: int = 1
) -> None:
    """DoesNotFit if the weights alone are more than the free memory; nothing where that cannot be known."""
    weights = weights_of(source, revision)
    if weights is None:
        return
    # agreed, or one rank would stop without the others
    free, where = from_rank_0(free_bytes(device_map, quantization, n_ranks), n_ranks > 1)
    needed = weights.bytes(dtype, quantization)
    if needed <= free:
        return
    advice = ["a smaller model", "a larger machine", "NDIF (REMOTE=1)"]
    for kind in reversed(QUANTIZATIONS) if not weights.method else ():
        size = weights.bytes(dtype, kind)
        if size <= free_bytes(device_map, kind, n_ranks)[0]:
            advice.insert(0, f"QUANTIZATION {kind} ({_gb(size)})")
    kept = f"{quantization or weights.method} with {dtype}" if quantization or weights.method else dtype
    raise DoesNotFit(
        f"{source} needs {_gb(needed)} for its weights in {kept}, and {_gb(free)} are free {where}; use "
        + ", or ".join(advice)
    )


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def floating_type(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """The torch dtype of that name, None for None; ModelError if it is no floating-point type."""
    if dtype is None:
        return None
    found = getattr(torch, str(dtype).removeprefix("torch."), None)
    if not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise ModelError(f"dtype {dtype!r} is not a torch floating-point type; use float32, bfloat16 or float16.")
    return found


def check_quantization(quantization: str | None, weights_here: bool) -> None:
    """Refuse, before any download, an unknown quantisation or one whose library is not installed."""
    if quantization is None:
        return
    if quantization not in QUANTIZATIONS:
        raise ModelError(f"quantization {quantization!r} is not known; use {' or '.join(QUANTIZATIONS)}, or None.")
    if not weights_here:
        raise ModelError(
            f"{quantization} weights were asked of a remote model, but its server decides how weights are held; "
            "use quantization=None (QUANTIZATION: null)."
        )
    if not is_bitsandbytes_available():
        raise ModelError(
            f"{quantization} weights need bitsandbytes, which is missing or too old; "
            "pip install -U bitsandbytes, or quantization=None (QUANTIZATION: null)."
        )


def check_devices(device_map: str | dict | None) -> None:
    """Refuse before any download a device that this machine does not have."""
    places = device_map.values() if isinstance(device_map, dict) else [device_map]
    for place in places:
        if place in (None, "disk", *SPREADS):
            continue
        try:
            torch.empty(0, device=place)
        except Exception as error:  # each backend raises its own
            raise ModelError(
                f"device_map names {place!r}, which is not here ({reason(error)}); "
                f"use another device, or one of {', '.join(SPREADS)}."
            ) from error
