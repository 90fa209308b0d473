"""Pretend devices: a model spread over several devices, and torch's refusal to mix them, on a machine that has none.

Every storage carries the name of a device. `.device` reports it, `.to`, `.cpu` and `device=` copy to another one, and
an operation on tensors of different devices raises as torch does, and so does float64 on "mps". Only the place is
pretended: the numbers are the CPU's.
"""

from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

CPU = torch.device("cpu")
DEVICE, IS_CUDA = torch.Tensor.device.__get__, torch.Tensor.is_cuda.__get__
MOVES = {torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda, torch.Tensor.type_as}
GET, SET = torch.Tensor.__getitem__, torch.Tensor.__setitem__
JOINS = {torch.cat, torch.stack, torch.concat, torch.hstack, torch.vstack}


class PretendDevices(TorchFunctionMode):
    """While it is active, `place(tensor, "cuda:1")` puts tensors on devices that need not exist."""

    def __enter__(self):
        memory = {"mem_get_info": (2**33, 2**34), "memory_reserved": 2**32, "memory_allocated": 2**31}
        self.memory = mock.patch.multiple(
            "torch.cuda", **{name: lambda device=None, value=value: value for name, value in memory.items()}
        )
        self.memory.start()
        return super().__enter__()

    def __exit__(self, *error):
        self.memory.stop()
        return super().__exit__(*error)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function == DEVICE:
            return device_of(args[0])
        if function == IS_CUDA:
            return device_of(args[0]).type == "cuda"
        if function is torch.Tensor.numpy and device_of(args[0]) != CPU:
            raise TypeError(f"can't convert {device_of(args[0])} tensor to numpy; use Tensor.cpu() first")
        if function in MOVES:
            return _moved(function, args, kwargs)
        if function is torch.autograd.grad:  # follows the copies back: a gradient lies where its input does
            gradients = function(*args, **kwargs)
            return tuple(place(g, device_of(x)) for g, x in zip(gradients, tree_leaves(args[1]), strict=True))
        device = kwargs.pop("device", None)
        if device is not None:
            _check_same(function, args, kwargs)
            return place(function(*args, **kwargs), device)
        common = _check_same(function, args, kwargs)
        given = {id(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        result = function(*args, **kwargs)
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and id(leaf) not in given:
                place(leaf, common)
        return result


def device_of(tensor):
    """The device that `tensor` is on, or pretends to be on."""
    return getattr(tensor.untyped_storage(), "pretended", CPU)


def place(tensor, device):
    """`tensor`, from now on on `device`: a torch.device, its name or the index of a GPU."""
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if device.type == "mps" and tensor.dtype == torch.float64:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.")
    tensor.untyped_storage().pretended = device
    return tensor


def _moved(function, args, kwargs):
    """What Tensor.to and its like return: only dtype and copy are left to torch, the device is pretended."""
    tensor, *rest = args
    device = kwargs.pop("device", None)
    if function is torch.Tensor.cpu:
        device, rest = CPU, []
    elif function is torch.Tensor.cuda:
        device, rest = (rest[0] if rest else 0 if device is None else device), []
    for k, option in enumerate(rest):
        if isinstance(option, torch.Tensor):
            device, rest[k] = device_of(option), option.dtype
        elif isinstance(option, (torch.device, str)) or type(option) is int:
            device, rest[k] = option, None
    rest = [option for option in rest if option is not None]
    kwargs.pop("non_blocking", None)
    device = device_of(tensor) if device is None else device_of(place(torch.empty(0), device))
    moved = torch.Tensor.to(tensor, *rest, **kwargs) if rest or kwargs else tensor
    if moved is tensor and device != device_of(tensor):
        moved = tensor.clone()  # another device is another memory: an edit there must not show here
    return moved if moved is tensor else place(moved, device)


def _check_same(function, args, kwargs):
    """The one device of all tensors among the arguments; RuntimeError as torch's if there are several."""
    if function is torch.Tensor.copy_ or (function is SET and not _by_tensors(args[1])):
        return device_of(args[0])  # copies go from any device to any other
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    if function in (SET, GET):  # what indexes may be on the CPU
        on_cpu = [leaf for leaf in tree_leaves(args[1]) if isinstance(leaf, torch.Tensor) and device_of(leaf) == CPU]
        tensors = [x for x in tensors if not any(x is leaf for leaf in on_cpu)]
    if function not in JOINS and any(x.dim() for x in tensors):
        tensors = [x for x in tensors if x.dim() or device_of(x) != CPU]  # a number on the CPU goes with any device
    devices = {device_of(x) for x in tensors}
    if len(devices) > 1:
        found = ", ".join(sorted(map(str, devices)))
        name = getattr(function, "__name__", function)
        raise RuntimeError(f"Expected all tensors to be on the same device, but {name} found {found}")
    return devices.pop() if devices else CPU


def _by_tensors(index):
    """Whether an index is more than numbers and slices: values under it are then put by a kernel, not copied."""
    return any(isinstance(part, (torch.Tensor, list)) for part in (index if isinstance(index, tuple) else (index,)))
