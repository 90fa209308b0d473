"""A user's process: loads a hosted model by its Hub name, waits for a line on stdin, runs probes remotely.

`python client.py '<json>'` with {"host", "model", "probes", "artifact", "out"}; writes to `out` the results, where the
package was, what travelled, and the memory it took. Every test that needs a process of its own starts this one.
"""

import contextlib
import json
import os
import sys
from pathlib import Path

import torch

import depth_lib as dl
from depth_lib import session
from depth_lib.remote import Patience, journalled

TEXTS = ["The quick brown fox jumps over 13 lazy dogs, and back again", "abcdefghijkl mnop", "8 apples and 5, thirteen"]
SUM = ("5 + 7 + 1 = ", "13")
PROBES = {
    "relative_contribution": lambda llm, **where: dl.relative_contribution(llm, TEXTS, **where),
    "layer_effects": lambda llm, **where: dl.layer_effects(llm, TEXTS, **where),
    "layer_effects_all": lambda llm, **where: dl.layer_effects(llm, TEXTS, mode="all", **where),
    "logit_lens": lambda llm, **where: dl.logit_lens(llm, TEXTS, **where),
    "residual_erasure": lambda llm, **where: dl.residual_erasure(llm, *SUM, TEXTS, **where),
    "integrated_gradients": lambda llm, **where: dl.integrated_gradients(llm, *SUM, **where),
}


def memory(what):
    """kB of "VmRSS", what this process holds now, or of "VmHWM", the most it has held."""
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith(what))


def one_run(llm, host, artifact, out, **environment):
    """logit_lens, journalled beside `artifact` if there is one; its result in `out` appears complete or not at all."""
    os.environ |= environment
    patience = Patience(shortest=0.02, longest=0.2)
    Patience.of_user = classmethod(lambda cls: (Path(f"{out}.asked").touch(), patience)[1])
    with journalled(artifact) if artifact else contextlib.nullcontext():
        torch.save(dl.logit_lens(llm, TEXTS, remote=host), f"{out}.part")
    os.rename(f"{out}.part", out)


def main():
    setup = json.loads(sys.argv[1])
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the most from here on, not what importing took
    llm = dl.load_model(setup["model"], remote=setup["host"])
    payloads, write_down = [], session._WrittenDown.__call__

    def kept(backend, tracer):
        write_down(backend, tracer)
        payloads.append(backend.blob)

    session._WrittenDown.__call__ = kept
    print("ready", flush=True)
    for line in sys.stdin:
        if line.startswith("{"):  # settings of one run in a process of its own, which a test will kill
            if os.fork() == 0:
                one_run(llm, setup["host"], **json.loads(line))
                os._exit(0)
            continue
        with journalled(setup["artifact"]):
            results = {probe: PROBES[probe](llm, remote=setup["host"]) for probe in setup["probes"]}
            seen = {"results": results, "package": dl.__file__, "payloads": payloads}
            seen |= {"memory": memory("VmHWM") - before, "meta": all(p.is_meta for p in llm._module.parameters())}
            torch.save(seen, setup["out"])
        return


if __name__ == "__main__":
    main()
