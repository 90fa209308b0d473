"""CPU seconds of removing 1 to 15 blocks of SmolLM2 from every start: all at once, and one model after the other.

python -m tests.real.removal [float32 | bfloat16]: one thread, the shortest of ten GSM8K prompts, and of the deletions
every 15th, scaled up; the others take as long per token. Beside it the products that cannot be avoided, at the rate of
the unembedding's.
"""

import sys
import time

import torch
from torch import nn

import depth_lib as dl
from depth_lib.data.tokens import tokenize

SIZES = range(1, 16)
SAMPLE = 15


@torch.no_grad()
def without(model, blocks, removed, ids, log_y):
    """Loss, KL and top-1 agreement of the model without these blocks."""
    model.model.layers = nn.ModuleList(block for l, block in enumerate(blocks) if l not in removed)
    model.config.num_hidden_layers = len(model.model.layers)
    log_p = model(ids[None], use_cache=False).logits[0].float().log_softmax(-1)
    change = log_y - log_p
    return torch.stack(
        [
            change[:-1].gather(1, ids[1:, None]).mean(),
            (log_y.exp() * change).sum(-1).mean(),
            (log_y.argmax(-1) == log_p.argmax(-1)).float().mean(),
        ]
    )


def main(dtype):
    torch.set_num_threads(1)
    llm = dl.load_model("SmolLM2-135M-Instruct", dtype=dtype)
    model, prompts = llm._module, dl.load_prompts("gsm8k", 10, source="sample")
    lengths = [len(x) for x in tokenize(llm, prompts)]
    prompt = prompts[lengths.index(min(lengths))]
    ids, blocks = torch.tensor(tokenize(llm, [prompt])[0]), list(model.model.layers)
    start = time.process_time()
    ours = dl.block_removal(llm, [prompt], sizes=SIZES)
    seconds = {"all at once": time.process_time() - start}
    pairs = [(s, n) for n in SIZES for s in range(len(blocks) - n + 1)]
    log_y = torch.no_grad()(model)(ids[None], use_cache=False).logits[0].float().log_softmax(-1)
    some = pairs[SAMPLE // 2 :: SAMPLE]
    start = time.process_time()
    deleted = torch.stack([without(model, blocks, range(s, s + n), ids, log_y) for s, n in some])
    seconds["one after the other"] = (time.process_time() - start) * len(pairs) / len(some)
    w = model.lm_head.weight
    x = torch.randn(256, w.shape[1], dtype=w.dtype)
    x @ w.T
    start = time.process_time()
    x @ w.T
    rate = len(x) * w.numel() / (time.process_time() - start)
    of_block = sum(p.numel() for p in blocks[0].parameters() if p.dim() > 1)
    n_blocks = sum(len(blocks) - s - n for s, n in pairs)
    seconds["products"] = len(ids) * (n_blocks * of_block + len(pairs) * w.numel()) / rate
    for name, value in seconds.items():
        every = value / len(ids) * sum(lengths)
        print(f"{name:20} {value:7.1f} s for {len(ids)} tokens, {every:6.0f} s for {sum(lengths)}")
    apart = torch.stack(
        [torch.stack([ours[f"removal_{key}"][n - 1, s] for key in ("loss", "kl", "top1")]) for s, n in some]
    )
    print("largest difference", (apart - deleted).abs().max().item())


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["float32"]))
