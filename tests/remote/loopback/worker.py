"""The process that holds the models: runs requests against them, and cannot import the package under test.

Started by server.py as `python -I worker.py '{"<repo id>": "<folder>", …}'`; requests come on stdin, answers go to
stdout, each as one line of JSON followed by as many bytes as it says. It ends when stdin does. The process that loads
the models only forks the one that runs the requests, so that a killed one is replaced at once.
"""

import builtins
import importlib.metadata
import io
import json
import os
import sys
import traceback

# As seen on NDIF. nnsight and its own needs are there to rebuild the request itself.
ALLOWED = {"torch", "numpy", "math", "einops", "collections", "typing", "operator", "pandas", "enum", "time", "nnsight"}
ABSENT = {"depth_lib", "tests"}


class Absent:
    """What is not installed where the model is, whatever this interpreter could find."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def forbid_imports_of_strangers():
    """import statements of code that came with a request find the allowed modules only, loaded or not."""
    real = builtins.__import__

    def guarded(name, globals=None, locals=None, fromlist=(), level=0):
        stranger = globals is not None and "__spec__" not in globals and "__file__" not in globals
        if stranger and name.split(".")[0] not in ALLOWED:
            raise ImportError(f"{name} is not on the server's list of allowed modules")
        return real(name, globals, locals, fromlist, level)

    builtins.__import__ = guarded


def main():
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not get between the answers
    sys.meta_path.insert(0, Absent())

    import torch
    import zstandard
    from nnsight import TransformersModel
    from nnsight.intervention.serialization import CustomCloudUnpickler
    from nnsight.schema.request import RequestModel
    from nnsight.schema.response import ResponseModel, Status
    from nnsight.tracing import tracer as tracing
    from transformers import AutoTokenizer

    class Unpickler(CustomCloudUnpickler):
        def find_class(self, module, name):
            if module.split(".")[0] not in ALLOWED | {"builtins", "cloudpickle"}:
                raise ImportError(f"{module} is not on the server's list of allowed modules")
            return super().find_class(module, name)

    def answer(head, *parts):
        answers.write(json.dumps(head | {"sizes": [len(part) for part in parts]}).encode() + b"\n" + b"".join(parts))
        answers.flush()

    models = {}
    for name, folder in json.loads(sys.argv[1]).items():
        models[name] = TransformersModel(
            folder,
            task="text-generation",
            tokenizer=AutoTokenizer.from_pretrained(folder),
            dispatch=True,
            dtype=torch.float32,
        )
        models[name]._module.eval()
    forbid_imports_of_strangers()
    packages = {name: importlib.metadata.version(name) for name in ("nnsight", "torch", "transformers")}
    while (child := os.fork()) != 0:
        answer({"ready": child, "env": {"python_version": sys.version, "packages": packages}})
        if os.waitpid(child, 0)[1] == 0:
            return
    while head := requests.readline():
        job = json.loads(head)
        blob = requests.read(job["size"])
        try:
            llm = models[job["model"]]
            llm._remoteable_set_env(job["env"])
            tracer = RequestModel.deserialize(blob, llm._remoteable_persistent_objects(), job["compress"], Unpickler)
            tracing.inc()
            try:
                tracer.execute(tracer.info.code)
                saves = tracing._saves()
                saved = {name: value for name, value in tracer.info.frame.f_locals.items() if id(value) in saves}
            finally:
                tracing.dec()
            buffer = io.BytesIO()
            torch.save(saved, buffer, pickle_protocol=4)  # as nnsight's own schema does
            result = zstandard.ZstdCompressor().compress(buffer.getvalue()) if job["compress"] else buffer.getvalue()
            frame = ResponseModel(id=job["id"], status=Status.COMPLETED, data=result).pickle()
            answer({"id": job["id"], "status": "COMPLETED"}, result, frame)
        except BaseException:
            answer({"id": job["id"], "status": "ERROR", "description": traceback.format_exc()})


if __name__ == "__main__":
    main()
