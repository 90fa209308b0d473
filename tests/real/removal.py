"""CPU seconds of removing 1 to 15 blocks of SmolLM2 from every start: all at once, and one model after the other.

python -m tests.real.removal [float32 | bfloat16]: one thread, the shortest of ten GSM8K prompts, and of the deletions
every 15th, scaled up; the others take as long per token. Beside it the products that cannot be avoided, at the rate of
the unembedding's.
"""

import sys
import time

import torch

import depth_lib as dl
from depth_lib.data.tokens import tokenize
from tests.oracles.removal import without

SIZES = range(1, 16)
SAMPLE = 15


@torch.no_grad()
def log_probabilities(model, ids):
    return model(ids[None], use_cache=False).logits[0].float().log_softmax(-1)


def damage(log_y, log_p, ids):
    """Loss, KL and top-1 agreement of a shorter model."""
    change = log_y - log_p
    loss, kl = change[:-1].gather(1, ids[1:, None]).mean(), (log_y.exp() * change).sum(-1).mean()
    return torch.stack([loss, kl, (log_y.argmax(-1) == log_p.argmax(-1)).float().mean()])


def timed(call):
    """The result of a call, and its seconds of CPU."""
    start = time.process_time()
    return call(), time.process_time() - start


def main(dtype):
    torch.set_num_threads(1)
    llm = dl.load_model("SmolLM2-135M-Instruct", dtype=dtype)
    model, prompts = llm._module, dl.load_prompts("gsm8k", 10, source="sample")
    prompt = min(prompts, key=lambda text: len(llm.tokenizer(text)["input_ids"]))
    n_tokens, ids = sum(map(len, tokenize(llm, prompts))), torch.tensor(tokenize(llm, [prompt])[0])
    n_blocks = len(model.model.layers)
    pairs = [(s, n) for n in SIZES for s in range(n_blocks - n + 1)]
    some, log_y = pairs[SAMPLE // 2 :: SAMPLE], log_probabilities(model, ids)

    def one_after_the_other():
        shorter = (without(model, range(s, s + n)) for s, n in some)
        return torch.stack([damage(log_y, log_probabilities(one, ids), ids) for one in shorter])

    ours, together = timed(lambda: dl.block_removal(llm, [prompt], sizes=SIZES))
    deleted, apart = timed(one_after_the_other)
    w = model.lm_head.weight
    x = torch.randn(256, w.shape[1], dtype=w.dtype)
    x @ w.T
    _, product = timed(lambda: x @ w.T)
    of_block = sum(p.numel() for p in model.model.layers[0].parameters() if p.dim() > 1)
    weights = sum(n_blocks - s - n for s, n in pairs) * of_block + len(pairs) * w.numel()
    seconds = {
        "all at once": together,
        "one after the other": apart * len(pairs) / len(some),
        "products": product * len(ids) * weights / (len(x) * w.numel()),
    }
    for name, value in seconds.items():
        every = value / len(ids) * n_tokens
        print(f"{name:20} {value:7.1f} s for {len(ids)} tokens, {every:6.0f} s for {n_tokens}")
    same = torch.stack([ours[f"removal_{key}"] for key in ("loss", "kl", "top1")])
    off = max((same[:, n - 1, s] - truth).abs().max().item() for (s, n), truth in zip(some, deleted, strict=True))
    print("largest difference", off)


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["float32"]))
