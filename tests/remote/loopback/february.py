"""What a server of NDIF's older source (February 2026) adds to the actor's conditions, in its process.

The default dtype is bfloat16; requests run under autocast; modules are wrapped; what its blocks were compiled to stays
for the requests after it. The model's own modules are shielded from autocast, so that what the probes compute of
given residuals can be compared.
"""

import contextlib
import copy
import json
from unittest import mock

import torch
from ndif.services.ray.deployments.modeling import base, nns
from nnsight import TransformersModel
from nnsight.intervention.serialization import CustomCloudUnpickler
from nnsight.schema.request import RequestModel
from transformers import AutoModelForCausalLM, AutoTokenizer


class Unpickler(CustomCloudUnpickler):
    def persistent_load(self, pid):
        value = super().persistent_load(pid)
        return protected(value) if isinstance(value, torch.nn.Module) else value


def protected(module):
    """A stand-in for a module: reading an attribute that is a tensor, list or dict copies it and says so."""

    class Protected(type(module)):
        def __init__(self):
            pass

        def __getattribute__(self, name):
            if name == "to":
                raise ValueError("Attribute `to` cannot be accessed")
            value = getattr(module, name)
            if not isinstance(value, torch.Tensor | list | dict) or name == "__dict__":
                return value
            print(f"WARNING: Accessing attribute `{name}` of {type(module).__name__} will return a deepcopy of it.")
            return copy.deepcopy(value)

        def __setattr__(self, name, value):
            raise AttributeError(f"Attribute {name!r} cannot be set after initialization")

    return Protected()


def shielded(model_key, dtype):
    """The model, whose blocks' parts, and all that stands beside the blocks, run without autocast."""
    folder = json.loads(model_key.partition(":")[2])["repo_id"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    blocks = max((m for m in model.modules() if isinstance(m, torch.nn.ModuleList)), key=len)
    inside = [module for block in blocks for module in list(block.modules())[1:]]
    beside = [module for module in model.modules() if not list(module.children())]
    for module in dict.fromkeys(inside + beside):
        module.forward = torch.autocast("cpu", enabled=False)(module.forward)
    return TransformersModel(model, task="text-generation", tokenizer=AutoTokenizer.from_pretrained(folder))


def prepare(model, payload, compress, deserialize):
    return RequestModel.deserialize(payload, model._remoteable_persistent_objects(), compress, Unpickler), 0


def execute(tracer, dtype):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return nns.execute_traced_block(tracer, dtype)


@contextlib.contextmanager
def conditions():
    """Around the run of one request."""
    ours = {"prepare_traced_block": prepare, "execute_traced_block": execute, "block_scope": contextlib.nullcontext}
    with mock.patch.multiple(base, **ours):
        torch.set_default_dtype(torch.bfloat16)
        try:
            yield
        finally:
            torch.set_default_dtype(torch.float32)
