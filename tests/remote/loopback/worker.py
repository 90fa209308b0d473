"""The process that holds the models: runs requests against them as NDIF does, and cannot import the package under test.

Started by server.py as `python -I worker.py '{"<repo id>": "<folder>", …}'`; requests come on stdin, answers go to
stdout, each as one line of JSON followed by as many bytes as it says. The first answer
says that the models are loaded. It ends when stdin does.

Conditions are NDIF's own (its modeling deployment, security/protected_environment.py and protected_objects.py): the
default dtype is bfloat16, set before the weights are loaded; weights are bfloat16 and frozen; modules are wrapped; the
code of a request has a list of imports and builtins. A job may run under "autocast", as NDIF has it on its GPUs;
"shielded", too, but for the model's own modules; or "friendly": none of all that, and float32.
"""

import builtins
import contextlib
import copy
import importlib
import io
import json
import os
import sys
import time
import traceback
import types

# What the code of a request may import: these, and what is inside those that end with a dot.
IMPORTS = (
    "builtins torch torch. collections collections. nnsight.intervention.envoy nnsight.intervention.envoy. time numpy "
    "numpy. sympy sympy. nnterp nnterp. math einops einops. urllib3 urllib3. typing _operator operator pandas pandas. "
    "enum"
).split()
# What the request itself, around that code, is made of.
OF_REQUESTS = (
    "pickle cloudpickle cloudpickle. copyreg nnsight.schema.request nnsight.modeling. nnsight.intervention. "
    "nnsight.tracing."
).split()
# The builtins that the code of a request has, besides exceptions.
BUILTINS = (
    "Ellipsis False None NotImplemented True __doc__ __import__ __loader__ __name__ __package__ __spec__ "
    "__build_class__ abs aiter all anext any ascii bool bytearray bytes callable chr classmethod complex copyright "
    "credits delattr dict dir divmod enumerate filter float format frozenset getattr hasattr hash hex id int "
    "isinstance issubclass iter len list map max min next object oct ord pow print property range repr reversed round "
    "set setattr slice sorted staticmethod str sum super tuple type vars zip memoryview globals input eval"
).split()
ABSENT = {"depth_lib", "tests"}


class Absent:
    """What is not installed where the model is, whatever this interpreter could find."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def check_import(name, allowed=IMPORTS):
    if name not in allowed and not any(prefix[-1] == "." and name.startswith(prefix) for prefix in allowed):
        raise ImportError(f"Module {name} is not whitelisted")


def guarded_import(name, globals=None, locals=None, fromlist=(), level=0):
    check_import(name)
    return builtins.__import__(name, globals, locals, fromlist, level)


def guarded_subimport(name):
    """A module that a request's function names among its globals."""
    check_import(name)
    return importlib.import_module(name)


def is_exception(value):
    return isinstance(value, type) and issubclass(value, BaseException)


SAFE_BUILTINS = {name: value for name, value in vars(builtins).items() if name in BUILTINS or is_exception(value)}
SAFE_BUILTINS["__import__"] = guarded_import


def protected(module, tensor_kinds):
    """A stand-in for a module: reading an attribute that is a tensor, list or dict copies it and says so."""

    class Protected(type(module)):
        def __init__(self):
            pass

        def __getattribute__(self, name):
            if name == "to":
                raise ValueError("Attribute `to` cannot be accessed")
            value = getattr(module, name)
            if not isinstance(value, tensor_kinds) or name == "__dict__":
                return value
            print(f"WARNING: Accessing attribute `{name}` of {type(module).__name__} will return a deepcopy of it.")
            return copy.deepcopy(value)

        def __setattr__(self, name, value):
            raise AttributeError(f"Attribute {name!r} cannot be set after initialization")

    return Protected()


def shield(model, torch, switch):
    """Have blocks' parts and all that stands beside the blocks run without autocast while switch["on"]."""
    blocks = max((m for m in model.modules() if isinstance(m, torch.nn.ModuleList)), key=len)
    inside = [module for block in blocks for module in list(block.modules())[1:]]
    beside = [module for module in model.modules() if not list(module.children())]
    for module in dict.fromkeys(inside + beside):
        module.forward = _shielded(module.forward, torch, switch)


def _shielded(forward, torch, switch):
    def run(*args, **kwargs):
        with torch.autocast("cpu", enabled=False) if switch["on"] else contextlib.nullcontext():
            return forward(*args, **kwargs)

    return run


def main():
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not get between the answers
    sys.meta_path.insert(0, Absent())

    import torch
    import zstandard
    from nnsight import TransformersModel
    from nnsight.intervention import serialization
    from nnsight.schema.request import RequestModel
    from nnsight.tracing import tracer as tracing
    from nnsight.tracing import util
    from transformers import AutoModelForCausalLM, AutoTokenizer

    def load_function(*parts):
        """A function of a request, whose builtins are the safe ones."""
        loaded = serialization._load_function(*parts)
        safe = types.FunctionType(loaded.__code__, {"__builtins__": SAFE_BUILTINS}, loaded.__name__, parts[2])
        safe.__kwdefaults__ = loaded.__kwdefaults__
        return safe

    class Unpickler(serialization.CustomCloudUnpickler):
        def find_class(self, module, name):
            check_import(module, IMPORTS + OF_REQUESTS)
            if name == "_load_function":
                return load_function
            if name == "subimport":
                return guarded_subimport
            return super().find_class(module, name)

        def persistent_load(self, pid):
            value = super().persistent_load(pid)
            return protected(value, (torch.Tensor, list, dict)) if isinstance(value, torch.nn.Module) else value

    plain_scope = util.Scope.__init__

    def scope(self, own, shared, glbls):
        """What a trace block sees: its builtins are those of the function around it."""
        plain_scope(self, own, shared, glbls)
        if "__builtins__" in glbls:
            dict.__setitem__(self, "__builtins__", glbls["__builtins__"])

    util.Scope.__init__ = scope

    def answer(content=b"", **head):
        answers.write(json.dumps(head | {"size": len(content)}).encode() + b"\n" + content)
        answers.flush()

    def load(folder, dtype):
        torch.set_default_dtype(dtype)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval().requires_grad_(False)
        shield(model, torch, switch)
        return TransformersModel(model, task="text-generation", tokenizer=AutoTokenizer.from_pretrained(folder))

    def run(job, blob):
        """What the job saved, and what it printed."""
        friendly, switch["on"] = job["friendly"], job["shielded"]
        autocast = job["autocast"] or job["shielded"]
        llm = friendly_models.get(job["model"]) if friendly else models[job["model"]]
        if llm is None:
            llm = friendly_models[job["model"]] = load(folders[job["model"]], torch.float32)
        torch.set_default_dtype(torch.float32 if friendly else torch.bfloat16)
        llm._remoteable_set_env(job["env"])
        unpickler = serialization.CustomCloudUnpickler if friendly else Unpickler
        persistent = llm._remoteable_persistent_objects()
        tracer = RequestModel.deserialize(blob, persistent, True, unpickler)
        if not friendly:
            tracer.info.frame.f_globals["__builtins__"] = SAFE_BUILTINS
        printed = io.StringIO()
        tracing.inc()
        try:
            with contextlib.redirect_stdout(printed), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                tracer.execute(tracer.info.code)
            saves = tracing._saves()
            saved = {name: value for name, value in tracer.info.frame.f_locals.items() if id(value) in saves}
        finally:
            tracing.dec()
        return saved, printed.getvalue()

    folders, friendly_models, switch = json.loads(sys.argv[1]), {}, {"on": False}
    models = {name: load(folder, torch.bfloat16) for name, folder in folders.items()}
    answer()
    while head := requests.readline():
        job = json.loads(head)
        blob = requests.read(job["size"])
        start = time.perf_counter()
        try:
            saved, printed = run(job, blob)
            buffer = io.BytesIO()
            torch.save(saved, buffer, pickle_protocol=4)  # as nnsight's own schema does
            result = zstandard.ZstdCompressor().compress(buffer.getvalue())
            seconds = time.perf_counter() - start
            answer(result, status="COMPLETED", printed=printed, seconds=seconds)
        except BaseException:
            answer(status="ERROR", description=traceback.format_exc())


if __name__ == "__main__":
    main()
