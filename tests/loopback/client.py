"""A user's process: loads a hosted model by its Hub name, waits for a line on stdin, runs probes remotely.

`python client.py '<json>'` with {"host", "model", "probes", "artifact", "out"}; writes to `out` the results, where the
package was, what travelled, and the memory it took. Every test that needs a process of its own starts this one.
"""

import json
import resource
import sys

import torch

import depth_lib as dl
from depth_lib import session
from depth_lib.remote import beside

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


def main():
    setup = json.loads(sys.argv[1])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    llm = dl.load_model(setup["model"], remote=setup["host"])
    payloads, write_down = [], session._WrittenDown.__call__

    def kept(backend, tracer):
        write_down(backend, tracer)
        payloads.append(backend.blob)

    session._WrittenDown.__call__ = kept
    print("ready", flush=True)
    sys.stdin.readline()
    with beside(setup["artifact"]):
        results = {probe: PROBES[probe](llm, remote=setup["host"]) for probe in setup["probes"]}
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        torch.save({"results": results, "package": dl.__file__, "payloads": payloads, "memory": memory,
                    "meta": all(p.is_meta for p in llm._module.parameters())}, setup["out"])  # fmt: skip


if __name__ == "__main__":
    main()
