"""In how many of 31 sums a toy's residual erasure is a staircase: `python -m tests.embedded.staircase`.

The papers' sum and 30 drawn ones of six one-digit terms. A term is its digit with the three characters after it; it is
needed up to the last layer at which erasing one of them moves the answer by more than 0.3. It is a staircase where no
term is needed up to a deeper layer than a later one, and there are four steps or more.
"""

import depth_lib as dl
from depth_lib.data.prompts import ANSWER, QUESTION
from depth_lib.embedded import TOYS

SUMS = [(QUESTION, ANSWER), *((one.question, one.answer) for one in dl.load_examples("sums", 30) if one.level == 6)]


def is_staircase(llm, question, answer, baseline):
    effect = dl.residual_erasure(llm, question, answer, baseline)["erasure_effect"]
    needed = [(effect[:, place : place + 4].amax(1) > 0.3).nonzero().flatten().tolist() for place in range(0, 24, 4)]
    last = [max(layers, default=-1) for layers in needed]
    return last == sorted(last) and len(set(last)) >= 4


def stairs(toy):
    """Whether each of the sums is a staircase."""
    baseline, llm = dl.load_prompts("gsm8k", 10, source="embedded"), dl.load_model(toy)
    return [is_staircase(llm, *pair, baseline) for pair in SUMS]


if __name__ == "__main__":
    print(", ".join(f"{toy} in {sum(stairs(toy))} of {len(SUMS)}" for toy in TOYS))
