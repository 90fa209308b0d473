"""How much memory each probe takes above a loaded model, in GiB: python -m benchmarks.memory MODEL DTYPE [PROBE …].

The peak of resident memory in a call on one GSM8K prompt, or on a sum; Linux only.
"""

import sys

import depth_lib as dl

SUM = ("5 + 7 - 3 + 2 = ", "11")


def resident(name):
    """VmRSS or VmHWM of this process, in GiB."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 2**20


def main(model, dtype, *probes):
    llm, prompts = dl.load_model(model, dtype=dtype), dl.load_prompts("gsm8k", 1, source="sample")
    dl.effective_depths(dl.relative_contribution(llm, prompts))  # the model is verified, modules are imported
    calls = {
        "contribution": lambda: dl.relative_contribution(llm, prompts),
        "lens": lambda: dl.logit_lens(llm, prompts),
        "effects": lambda: dl.layer_effects(llm, prompts),
        "removal": lambda: dl.block_removal(llm, prompts),
        "erasure": lambda: dl.residual_erasure(llm, *SUM, prompts),
        "gradients": lambda: dl.integrated_gradients(llm, *SUM),
    }
    for name in probes or calls:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # forgets the peak so far
        before = resident("VmRSS")
        calls[name]()
        print(f"{name}: {resident('VmHWM') - before:.2f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
