"""Does a model fit into the memory that is here? Asked of its config alone, before a weight is downloaded."""

import re
from dataclasses import dataclass

import psutil
import torch
from accelerate import init_empty_weights
from transformers import AutoConfig, AutoModelForCausalLM

_QUANTIZED = {"8bit": 1.0, "4bit": 0.5625}  # bytes a weight of a block; 4-bit ones have a float32 scale for each 64
_ROOM = 1.02  # buffers, and what a process needs besides


class DoesNotFit(ValueError):
    """A model needs more memory than there is; the message says how much, and what would fit."""


@dataclass(frozen=True)
class Weights:
    """How many weights a model has: those that can be quantised (its blocks' linear layers), and the others."""

    linear: int
    other: int

    def bytes(self, dtype: str, quantization: str | None = None) -> int:
        """What they take, held in `dtype` or quantised."""
        width = getattr(torch, dtype).itemsize
        return int((self.linear * _QUANTIZED.get(quantization, width) + self.other * width) * _ROOM)


def weights_of(source: str, revision: str | None = None) -> Weights | None:
    """Count a model's weights from its config; None where that is not to be had, which loading will say better."""
    try:
        config = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)
        with init_empty_weights():
            model = AutoModelForCausalLM.from_config(config)
    except Exception:  # noqa: BLE001 (no network, no such model, a family that transformers does not know)
        return None
    model.tie_weights()
    unembed = model.get_output_embeddings()
    linear = sum(
        module.weight.numel()
        for module in model.modules()
        if isinstance(module, torch.nn.Linear) and module is not unembed
    )
    return Weights(linear, sum(weight.numel() for weight in model.parameters()) - linear)


def free_bytes(device_map: str | None, quantization: str | None = None) -> tuple[int, str]:
    """The free memory that a device_map leads to, and where it is; quantised weights stay off the CPU."""
    gpus = [torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())]
    ram = psutil.virtual_memory().available
    one = re.fullmatch(r"cuda(?::(\d+))?", device_map or "")
    if device_map == "cpu" or not gpus:
        return ram, "in this machine's memory"
    if device_map is None or one:
        index = int(one[1] or 0) if one else 0
        return gpus[min(index, len(gpus) - 1)], f"on GPU {index}"
    where = f"on {len(gpus)} GPU{'s' if len(gpus) > 1 else ''}"
    return (sum(gpus), where) if quantization else (sum(gpus) + ram, f"{where} and the CPU")


def check_fits(source: str, revision: str | None, dtype: str, quantization: str | None, device_map: str | None) -> None:
    """DoesNotFit if the weights alone are more than the free memory; nothing where that cannot be known."""
    weights = weights_of(source, revision)
    if weights is None:
        return
    free, where = free_bytes(device_map, quantization)
    needed = weights.bytes(dtype, quantization)
    if needed <= free:
        return
    ways = [(dtype, kind) for kind in (None, *_QUANTIZED)]
    fitting = [
        f"QUANTIZATION {kind or 'null'} ({_gb(size)})"
        for dtype, kind in ways
        if kind != quantization and (size := weights.bytes(dtype, kind)) <= free_bytes(device_map, kind)[0]
    ]
    held = f"{quantization} with {dtype}" if quantization else dtype
    raise DoesNotFit(
        f"{source} needs {_gb(needed)} for its weights in {held}, and {_gb(free)} are free {where}; "
        + (f"what would fit: {', '.join(fitting)}, or" if fitting else "neither 8bit nor 4bit would fit: take")
        + " a smaller model, a larger machine, or NDIF (REMOTE=1)"
    )


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
