"""What maps between two models hold in memory, known before they start, and the groups of layers that this makes."""

from dataclasses import dataclass
from itertools import product

import psutil
import torch

TOKENS = 2048  # in a block of text; fewer make products a tenth slower, more gain nothing


class TooLarge(ValueError):
    """Not even one map fits into the memory that may be used; the message says what would be needed."""


@dataclass(frozen=True)
class Plan:
    """Groups of (source layers, target layers) whose maps are fitted in one pass of text each, and their bytes."""

    groups: list[tuple[list[int], list[int]]]
    bytes: int
    device: torch.device

    def __str__(self) -> str:
        maps = sum(len(source) * len(target) for source, target in self.groups)
        passes = f"{len(self.groups)} pass{'es' if len(self.groups) > 1 else ''} over the text"
        return f"{maps} linear maps in {passes}, at most {self.bytes / 1e9:.2f} GB on {self.device} beside the models"


def bytes_of(n_source: int, n_target: int, d_source: int, d_target: int, n_block: int) -> int:
    """The most that a group of n_source × n_target maps holds while n_block tokens (at most) are added to it.

    Moments to fit and to choose, float64; the states of a block as they come, the source's in float64 beside them, and
    a product's operands twice, since the BLAS may pack a copy of them; the errors; the factorisation of one pair.
    All but the moments twice, since an allocator keeps about as much of what was freed as it hands out, and 4 MB that
    are there whatever the size.
    """
    rows, columns = d_source + 1, d_source + 1 + d_target
    moments = 2 * n_source * n_target * rows * columns * 8
    states = n_block * (n_source * (2 * d_source * 4 + rows * 8) + n_target * 2 * d_target * 4)
    block = states + n_block * 2 * columns * 8 + n_block * n_source * n_target * 8
    return moments + 2 * max(block, (6 * rows * rows + 6 * rows * columns) * 8) + 2**22


def plan(
    layers: tuple[int, int], widths: tuple[int, int], n_block: int, device: torch.device, memory: int | None
) -> Plan:
    """The fewest groups that stay within `memory` bytes (default: half of what is free on the device).

    layers, widths: how many states and of which width source and target have. Raises TooLarge.
    """
    memory = memory or free_bytes(device) // 2
    fewest = bytes_of(1, 1, *widths, n_block)
    if fewest > memory:
        raise TooLarge(
            f"a single map needs {fewest / 1e9:.2f} GB and {memory / 1e9:.2f} GB may be used on {device}; "
            "give more (memory=), or take narrower models"
        )
    shapes = [(s, t) for s in range(1, layers[0] + 1) for t in range(1, layers[1] + 1)]
    fitting = [shape for shape in shapes if bytes_of(*shape, *widths, n_block) <= memory]
    s, t = min(fitting, key=lambda shape: (-(-layers[0] // shape[0]) * -(-layers[1] // shape[1]), -shape[0]))
    parts = [_even(layers[0], s), _even(layers[1], t)]
    groups = [(source, target) for target, source in product(parts[1], parts[0])]
    largest = max(bytes_of(len(source), len(target), *widths, n_block) for source, target in groups)
    return Plan(groups, largest, device)


def free_bytes(device: torch.device) -> int:
    """The free memory of a device."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available


def _even(n, size):
    """range(n) in as few parts of at most `size` as there can be, of nearly equal length."""
    parts = -(-n // size)
    return [list(range(n * k // parts, n * (k + 1) // parts)) for k in range(parts)]
