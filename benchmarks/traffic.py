"""What crosses the socket of NDIF's sandbox, counted for each probe: python -m benchmarks.traffic

On toy-8l, with prompts of 15 and 400 tokens, one job for each probe; increments in 4 steps.
"""

import os
import tempfile
from pathlib import Path

import depth_lib as dl
from depth_lib import embedded, session
from tests.remote.loopback.fixture import KEY, TOY, Loopback

QUESTION, ANSWER, BASELINE = "5 + 7 + 5 + 3 + 1 + 7 = ", "28", ["3 + 4 = 7"]


def prompts_of(llm):
    """Texts of 15 and 400 tokens."""
    ids = llm.tokenizer("".join(dl.load_prompts("gsm8k", 2, source="sample")))["input_ids"]
    return [llm.tokenizer.decode(ids[:n]) for n in (15, 400)]


def calls(llm):
    """The probes as functions of a model."""
    prompts = prompts_of(llm)
    return {
        "relative_contribution": lambda llm, **where: dl.relative_contribution(llm, prompts, **where),
        "logit_lens": lambda llm, **where: dl.logit_lens(llm, prompts, **where),
        "answer_lens": lambda llm, **where: dl.answer_lens(llm, QUESTION, ANSWER, **where),
        "layer_effects, future": lambda llm, **where: dl.layer_effects(llm, prompts, **where),
        "layer_effects, all": lambda llm, **where: dl.layer_effects(llm, prompts, mode="all", **where),
        "attention_effects, future": lambda llm, **where: dl.layer_effects(llm, prompts, part="attention", **where),
        "local_effects, future": lambda llm, **where: dl.local_effects(llm, prompts, **where),
        "residual_erasure": lambda llm, **where: dl.residual_erasure(llm, QUESTION, ANSWER, BASELINE, **where),
        "future_erasure": lambda llm, **where: dl.future_erasure(llm, QUESTION, ANSWER, BASELINE, **where),
        "block_orders": lambda llm, **where: dl.block_orders(llm, prompts, "swaps", **where),
        "increments": lambda llm, **where: dl.integrated_gradients(
            llm, QUESTION, ANSWER, method="increments", quadrature=1.0, steps=4, **where
        ),
    }


def crossed(loopback, llm, call):
    """Bytes to and from the runner, messages and the largest of them, of one call as one job."""
    session.check_model(llm, remote=loopback.host)  # a job of its own
    with loopback.faults(sandbox=True):
        call(llm, remote=loopback.host)
    return loopback.crossed


def lines(loopback):
    """The lines of a Markdown table."""
    llm = loopback.model(TOY)
    table = ["| probe | MB to the runner | MB from it | messages | largest, MB |", "|---|---|---|---|---|"]
    for name, call in calls(llm).items():
        found = crossed(loopback, llm, call)
        to, back, largest = (found[key] / 1e6 for key in ("to_runner", "from_runner", "largest"))
        table.append(f"| {name} | {to:.1f} | {back:.1f} | {found['messages']} | {largest:.1f} |")
    return table


def main():
    with tempfile.TemporaryDirectory() as cache:
        os.environ |= {"NDIF_API_KEY": KEY, "XDG_CACHE_HOME": cache}
        print("\n".join(lines(Loopback({TOY: Path(embedded.__file__).parent / "toy-8l"}))))


if __name__ == "__main__":
    main()
