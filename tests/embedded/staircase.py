"""In how many of 31 sums a toy's residual erasure is a staircase: `python -m tests.embedded.staircase`.

The papers' sum and 30 drawn ones of six one-digit terms. A term is its digit with the three characters after it; it is
needed up to the last layer at which erasing one of them moves the answer by more than 0.3. It is a staircase where no
term is needed up to a deeper layer than a later one, and there are four steps or more. How many there would be by
chance: the share of the orders of a sum's first five terms that give one, summed over the sums. (The last term is
needed longest in nearly every sum, whatever the others do.)
"""

from itertools import permutations

import depth_lib as dl
from depth_lib.data.prompts import ANSWER, QUESTION
from depth_lib.embedded import TOYS

SUMS = [(QUESTION, ANSWER), *((one.question, one.answer) for one in dl.load_examples("sums", 30) if one.level == 6)]


def needed_up_to(llm, question, answer, baseline):
    """The last layer at which each of the six terms is needed."""
    effect = dl.residual_erasure(llm, question, answer, baseline)["erasure_effect"]
    needed = [(effect[:, place : place + 4].amax(1) > 0.3).nonzero().flatten().tolist() for place in range(0, 24, 4)]
    return [max(layers, default=-1) for layers in needed]


def is_staircase(last):
    return list(last) == sorted(last) and len(set(last)) >= 4


def stairs(toy):
    """Whether each of the sums is a staircase, and how many would be if their first five terms came in any order."""
    baseline, llm = dl.load_prompts("gsm8k", 10, source="embedded"), dl.load_model(toy)
    of_sums = [needed_up_to(llm, *pair, baseline) for pair in SUMS]
    orders = [[is_staircase([*five, last[5]]) for five in permutations(last[:5])] for last in of_sums]
    return [is_staircase(last) for last in of_sums], sum(sum(found) / len(found) for found in orders)


if __name__ == "__main__":
    for toy in TOYS:
        found, by_chance = stairs(toy)
        print(f"{toy} in {sum(found)} of {len(SUMS)}, by chance {by_chance:.1f}")
