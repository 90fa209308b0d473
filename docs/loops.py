"""The numbers of docs/loops.md: python -m docs.loops."""

import random
from pathlib import Path

import torch
from scipy.stats import t as student

import depth_lib as dl
from experiments.training.corpus import draw_sum

TOYS = Path(__file__).parents[1] / "experiments" / "training" / "toys"
GROUP, PASSES, N = 2, 3, 20


def with_interval(values: torch.Tensor) -> str:
    """Mean and half of the 95 % interval over prompts."""
    half = student.ppf(0.975, len(values) - 1) * values.std() / len(values) ** 0.5
    return f"{values.mean():.2f} ± {half:.2f}"


def loss_of_answers(module, tokenizer, sums: list[tuple[str, str]]) -> torch.Tensor:
    """−log p of each answer, in nats per token."""
    losses = []
    for question, answer in sums:
        ids = torch.tensor([tokenizer(question + answer)["input_ids"]])
        n = len(tokenizer(answer)["input_ids"])
        with torch.no_grad():
            log_p = module(ids).logits[0, :-1].log_softmax(-1)
        losses.append(-log_p.gather(-1, ids[0, 1:, None])[-n:].mean())
    return torch.stack(losses)


def main() -> None:
    rng = random.Random(0)
    sums = [draw_sum(rng, held_out=True) for _ in range(N)]
    prompts = [question + answer for question, answer in sums]
    stored, ordinary = (dl.load_model(TOYS / f"toy-{kind}-answers") for kind in ("shared", "ordinary"))
    tokenizer = stored.tokenizer
    group = dl.remove_blocks(stored, GROUP, GROUP * (PASSES - 1))._module
    looped = dl.load_model(dl.unroll(group, PASSES), tokenizer)
    ids = torch.tensor([tokenizer(prompts[0])["input_ids"]])
    print(
        "differs from the stored copy by", (looped._module(ids).logits - stored._module(ids).logits).abs().max().item()
    )
    print("parameters:", *(f"{llm._module.num_parameters():,}" for llm in (looped, stored, ordinary)))
    for name, llm in {"looped": looped, "separate": ordinary}.items():
        contribution, lens = dl.relative_contribution(llm, prompts), dl.logit_lens(llm, prompts)
        effects = dl.layer_effects(llm, prompts)
        print(name)
        print("  rc_layer:", [round(x, 2) for x in contribution["rc_layer"].tolist()])
        print("  res_kl_divs:", [round(x, 2) for x in lens["res_kl_divs"].tolist()])
        print("  max_future_out:", [round(x, 2) for x in effects["max_future_out"][:, 0].tolist()])
        print(dl.effective_depths(lens).to_string())
        for s in range(0, GROUP * PASSES, GROUP):
            changed = dl.remove_blocks(llm, s, GROUP)._module
            print(f"  without blocks {s} and {s + 1}:", with_interval(loss_of_answers(changed, tokenizer, sums)))
    for passes in range(1, PASSES + 3):
        unrolled = dl.unroll(group, passes)
        print(f"{passes} passes:", with_interval(loss_of_answers(unrolled, tokenizer, sums)))


if __name__ == "__main__":
    main()
