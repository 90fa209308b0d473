"""Whether this machine has the memory, devices, dtypes and quantisation for a model; asked before any download."""

import ctypes
import re
from contextlib import suppress

import psutil
import torch
from transformers.utils.import_utils import is_bitsandbytes_available

from ..hub import without_retries
from ..params import not_among
from .errors import ModelError, reason
from .families import auto_class, read_config, without_weights

SPREADS = ("auto", "balanced", "balanced_low_0", "sequential")  # accelerate's ways to spread blocks over devices
QUANTIZATIONS = {"8bit": 1.0, "4bit": 0.5}  # bytes per weight
M_MMAP_THRESHOLD = -3  # of glibc's malloc.h


class DoesNotFit(ModelError):
    """A model, or a measurement of it, needs more memory than is available."""


def is_full(error: BaseException) -> bool:
    """Whether an allocator had no memory left, on a GPU or on the CPU, where torch raises a RuntimeError."""
    full = MemoryError | torch.OutOfMemoryError
    return isinstance(error, full) or bool(re.search("allocate memory|not enough memory", str(error)))


def check_fits(source: str, revision: str | None, dtype: str, quantization: str | None, device_map: str | None) -> None:
    """Raise DoesNotFit if the config's weights, in this dtype or quantisation, exceed the free memory.

    It does nothing without a config, or for a quantised checkpoint.
    """
    check_devices(device_map)
    needed = _n_weights(source, revision) * (QUANTIZATIONS.get(quantization or "") or getattr(torch, dtype).itemsize)
    if needed > (free := _free_bytes(device_map)):
        raise DoesNotFit(
            f"{source} needs {needed / 1e9:.1f} GB for its weights in {quantization or dtype}, and {free / 1e9:.1f} GB "
            "are free; set QUANTIZATION to 8bit or 4bit, or use a smaller model, a larger machine, or NDIF (REMOTE=1)"
        )


def _n_weights(source, revision):
    """The number of weights of a config; 0 if unknown."""
    with suppress(Exception), without_retries(source):  # loading names any problem
        config = read_config(source, revision)
        if getattr(config, "quantization_config", None) is None:
            return without_weights(config, auto_class(config).from_config).num_parameters()
    return 0


def _free_bytes(device_map):
    """The free bytes of the devices for the weights."""
    gpus = [torch.cuda.mem_get_info(gpu)[0] for gpu in range(torch.cuda.device_count())]
    memory = psutil.virtual_memory().available
    if device_map == "cpu" or not gpus:
        return memory
    if device_map is None or device_map.startswith("cuda"):
        return gpus[torch.device(device_map or "cuda").index or 0]
    return sum(gpus) + memory


def give_back_at_once(module: torch.nn.Module) -> None:
    """Make glibc return freed tensors to the system, if the weights on the CPU have 1 GiB or more.

    By default glibc keeps freed memory: for a model of 1.5B parameters, two to four times what a probe needs. Returning
    it costs a tenth of the time for such a model, and a quarter for a small one. The setting holds for the process.
    """
    if sum(weight.nbytes for weight in module.parameters() if weight.device.type == "cpu") >= 2**30:
        with suppress(OSError, TypeError, AttributeError):  # only glibc has this setting
            ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**20)


def floating_type(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """The torch dtype of this name, None for None or "auto"; ModelError for anything but floats of 16 bits or more."""
    if dtype in (None, "auto"):
        return None
    found = getattr(torch, str(dtype).removeprefix("torch."), None)
    if not (isinstance(found, torch.dtype) and found.is_floating_point and found.itemsize > 1):
        raise ModelError(f"dtype {dtype!r} is not supported; use float32, bfloat16 or float16")
    return found


def check_quantization(quantization: str | None) -> None:
    """Raise ModelError for an unknown quantisation, or one whose library is not installed."""
    if quantization is None:
        return
    if problem := not_among(QUANTIZATIONS, "quantization", quantization):
        raise ModelError(problem)
    if not is_bitsandbytes_available():
        raise ModelError(
            f"{quantization} weights need bitsandbytes, which is missing or too old; "
            "pip install -U bitsandbytes, or quantization=None (QUANTIZATION: null)"
        )


def check_devices(device_map: str | dict | None) -> None:
    """Raise ModelError for a device that this machine does not have."""
    places = [*device_map.values()] if isinstance(device_map, dict) else [device_map]
    for place in places:
        if place in (None, *SPREADS) or (place == "disk" and {*map(str, places)} != {"disk"}):
            continue
        try:
            if place == "disk" or torch.empty(0, device=place).is_meta:
                raise ValueError("weights on that device cannot be read")
        except Exception as error:  # each backend raises its own
            raise ModelError(
                f"device_map names {place!r}, which cannot be used ({reason(error)}); "
                f"use a different device, or one of {', '.join(SPREADS)}"
            ) from error
