"""nnsight's mini-paper on this paper beside depth_lib, on one toy: python -m tests.benchmarks.mini_paper

The notebook csordas_llm_depth.ipynb of nnsight.net reads a block's residual stream as `layer.output[0]`, which was the
hidden states of a tuple. In transformers 5 a block returns the tensor itself, and `[0]` takes the batch axis away. What
it measures is written here anew, with the reading as an argument.
"""

import torch
from torch.nn.functional import cosine_similarity

import depth_lib as dl
from depth_lib.data.tokens import future_positions, tokenize

READINGS = {"layer.output[0]": lambda block: block.output[0], "layer.output": lambda block: block.output}
RESULTS = ("rc_att", "rc_mlp", "rc_layer", "att_cos", "mlp_cos", "layer_cos")


def contributions(llm, prompts, read):
    """Norm ratios and cosines [6, L] as the notebook has them: sums over tokens, over the length of axis 1."""
    total, count = 0, 0
    with torch.no_grad():
        for prompt in prompts:
            with llm.trace(prompt):
                rows = []
                for block in llm.model.layers:
                    h, a = block.input, block.self_attn.output[0]
                    m, after = block.mlp.output, read(block)
                    pairs = (a, h), (m, h + a), (after - h, h)
                    ratios = [x.norm(dim=-1) / y.norm(dim=-1) for x, y in pairs]
                    cosines = [cosine_similarity(x, y, dim=-1) for x, y in pairs]
                    rows.append(torch.stack([value.sum() for value in ratios + cosines]))
                n_tokens = after.shape[1]
                table = torch.stack(rows, dim=1).save()
                n_tokens = torch.tensor(n_tokens).save()
            total, count = total + table, count + int(n_tokens)
    return total / count


def skipped(llm, prompt, s, starts, read):
    """The largest change of the output's probabilities from token t on, if block s passes tokens 1..t−1 on unchanged,
    over these t."""
    largest = 0
    with torch.no_grad():
        with llm.trace(prompt):
            clean = llm.output.logits.softmax(-1).save()
        for t in starts:
            with llm.trace(prompt):
                block = llm.model.layers[s]
                h, after = block.input, read(block)
                block.output = torch.cat([after[:, :1], h[:, 1:t], after[:, t:]], dim=1)
                changed = llm.output.logits.softmax(-1).save()
            largest = max(largest, (changed - clean)[:, t:].norm(dim=-1).max().item())
    return largest


def main():
    llm, prompts = dl.load_model("toy-8l"), dl.load_prompts("gsm8k", 2, source="embedded")
    ours, (ids, *_) = dl.relative_contribution(llm, prompts), tokenize(llm, prompts)
    (starts,) = future_positions([len(ids)])
    print(f"{'':16} " + " ".join(f"{key:>9}" for key in RESULTS) + "   effect of skipping block 2")
    for name, read in READINGS.items():
        means = contributions(llm, prompts, read).mean(1)
        try:
            effect = f"{skipped(llm, prompts[0], 2, starts, read):.4f}"
        except Exception as error:  # noqa: BLE001 (what a reader of the notebook would see)
            effect = type(error).__name__
        print(f"{name:16} " + " ".join(f"{value:9.4f}" for value in means) + f"   {effect}")
    effect = dl.layer_effects(llm, [prompts[0]], mode="future")
    print(f"{'depth_lib':16} " + " ".join(f"{ours[key].mean():9.4f}" for key in RESULTS), end="   ")
    print(f"{effect['max_future_out'][2, 0]:.4f}")
    print(f"prompts of {[len(ids) for ids in tokenize(llm, prompts)]} tokens, width {llm.config.hidden_size}")


if __name__ == "__main__":
    main()
