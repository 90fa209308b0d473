"""nnsight's mini-paper on this paper beside depth_lib, on one toy: python -m benchmarks.mini_paper

The notebook csordas_llm_depth.ipynb of nnsight.net reads a block's residual stream as `layer.output[0]`, which was the
hidden states of a tuple. In transformers 5 a block returns the tensor itself, and `[0]` takes the batch axis away. What
it measures is that of literal.py, with the reading as an argument.
"""

import depth_lib as dl
from benchmarks import literal
from depth_lib.data.tokens import future_positions, tokenize

READINGS = {"layer.output[0]": lambda block: block.output[0], "layer.output": lambda block: block.output}
KEYS = ("rc_att", "rc_mlp", "rc_layer", "att_cos", "mlp_cos", "layer_cos")


def line(name, curves, effect):
    """Means over blocks, and how much skipping block 2 changes the output."""
    return f"{name:16} " + " ".join(f"{curves[key].mean():9.4f}" for key in KEYS) + f"   {effect}"


def main():
    llm, prompts = dl.load_model("toy-8l"), dl.load_prompts("gsm8k", 2, source="embedded")
    lengths = [len(ids) for ids in tokenize(llm, prompts)]
    print(f"{'':16} " + " ".join(f"{key:>9}" for key in KEYS) + "   effect of skipping block 2")
    for name, read in READINGS.items():
        curves = literal.relative_contribution(llm, prompts, read)
        try:
            found = literal.layer_effects(llm, prompts[:1], future_positions(lengths[:1]), read)
            effect = f"{found['max_future_out'][2, 0]:.4f}"
        except Exception as error:  # noqa: BLE001 (what a reader of the notebook would see)
            effect = type(error).__name__
        print(line(name, curves, effect))
    ours = dl.layer_effects(llm, prompts[:1], mode="future")["max_future_out"]
    print(line("depth_lib", dl.relative_contribution(llm, prompts), f"{ours[2, 0]:.4f}"))
    print(f"prompts of {lengths} tokens, width {llm.config.hidden_size}")


if __name__ == "__main__":
    main()
