"""In how many random sums is each term done with in a later layer than the one before? For the README's claim.

`python -m tests.benchmarks.staircase toy-4l toy-8l toy-16l --sums 100`
"""

import argparse
import random

import depth_lib as dl

TERMS, NEEDED = 6, 0.3  # terms of a sum; change of the answer's distribution from which on a term counts as needed


def sums(n, seed=0):
    """n random sums of six digits whose answer has two, as (question, answer)."""
    draw = random.Random(seed)
    while n:
        terms = [draw.randint(1, 9) for _ in range(TERMS)]
        if sum(terms) > 9:
            n -= 1
            yield " + ".join(map(str, terms)) + " = ", str(sum(terms))


def last_needed(llm, question, answer, baseline):
    """For each term with the characters up to the next one: the last row of the erasure map in which it is needed.

    −1 for a term that is needed nowhere.
    """
    effect = dl.residual_erasure(llm, question, answer, baseline)["erasure_effect"]
    offsets = llm.tokenizer(question + answer, return_offsets_mapping=True)["offset_mapping"]
    rows = []
    for start in range(0, 4 * TERMS, 4):
        tokens = [t for t, (begin, end) in enumerate(offsets) if start < end <= start + 4]
        needed = (effect[:, tokens].amax(1) > NEEDED).nonzero()
        rows.append(int(needed.max()) if len(needed) else -1)
    return rows


def is_staircase(rows):
    """Whether no term is done with before the one in front of it, in at least four steps."""
    return rows == sorted(rows) and len(set(rows)) >= 4


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--sums", type=int, default=100)
    asked = parser.parse_args()
    for model in asked.models:
        llm = dl.load_model(model)
        source = "embedded" if model.startswith("toy-") else "sample"
        baseline = dl.load_prompts("gsm8k", source=source)
        stairs = [is_staircase(last_needed(llm, *asked_sum, baseline)) for asked_sum in sums(asked.sums)]
        print(f"{model}: a staircase in {sum(stairs)} of {len(stairs)} sums", flush=True)


if __name__ == "__main__":
    main()
