"""What the toy models read: sums of one-digit numbers, and templated text in the formats of the three datasets."""

import math
import random
import re
import zlib
from functools import cache

from ..prompts import DATASETS
from .templates import ACTORS, AIME24, DAYS, GOODS, GSM8K, HELLASWAG, PEOPLE, PLACES, THINGS, VEHICLES


def is_held_out(question: str) -> bool:
    """Whether a sum such as "5 + 7 = " is kept out of training: one in ten, by CRC-32, so that anybody can tell."""
    return zlib.crc32(question.encode()) % 10 == 0


def draw_sum(rng: random.Random, held_out: bool) -> tuple[str, str]:
    """Question and answer of a sum of 2–6 digits 0–9, ("5 + 7 + 5 = ", "17"), from one side of `is_held_out`."""
    while True:
        digits = [rng.randrange(10) for _ in range(rng.randint(2, 6))]
        question = " + ".join(map(str, digits)) + " = "
        if is_held_out(question) == held_out:
            return question, str(sum(digits))


@cache
def _compiled(expression: str):
    return compile(expression, "<template>", "eval")


def _fill(template: str, values: dict) -> str:
    scope = {**values, "comb": math.comb, "pow": pow}
    return re.sub(r"\{([^{}]+)\}", lambda found: str(eval(_compiled(found[1]), scope)), template)


def gsm8k_row(rng: random.Random) -> dict:
    """A made-up word problem in GSM8K's schema."""
    numbers, question, reasoning, answer = rng.choice(GSM8K)
    (name, he), (other, _) = rng.sample(PEOPLE, 2)
    day, day2 = rng.sample(DAYS, 2)
    things, place, good, vehicle = map(rng.choice, (THINGS, PLACES, GOODS, VEHICLES))
    words = dict(name=name, he=he, He=he.capitalize(), other=other, day=day, day2=day2)
    values = {**numbers(rng.randint), **words, "things": things, "place": place, "good": good, "vehicle": vehicle}
    question, reasoning, answer = (_fill(part, values) for part in (question, reasoning, "{" + answer + "}"))
    return {"question": question, "answer": f"{reasoning}\n#### {answer}"}


def hellaswag_row(rng: random.Random) -> dict:
    """A made-up scene with one fitting and three unfitting endings in HellaSwag's schema (`label` is a string)."""
    label = rng.randrange(4)
    activities = rng.sample(HELLASWAG, 4)
    endings = [rng.choice(activity[3]) for activity in activities]
    name, first, then, _ = activities[label]
    who, the, he = rng.choice(ACTORS)
    ctx_a, he_or_the = f"{who} is {rng.choice(first)}.", rng.choice((he, the))
    if rng.random() < 0.7:
        ctx_a += f" {rng.choice((he, the)).capitalize()} {rng.choice(then)}."
    return {
        "ind": rng.randrange(100000),
        "activity_label": name,
        "ctx_a": ctx_a,
        "ctx_b": he_or_the,
        "ctx": f"{ctx_a} {he_or_the}",
        "endings": endings,
        "source_id": "made-up",
        "split": "train",
        "split_type": "indomain",
        "label": str(label),
    }


def aime24_row(rng: random.Random) -> dict:
    """A made-up problem with an integer answer in the schema of Maxwell-Jia/AIME_2024."""
    numbers, problem, solution, answer = rng.choice(AIME24)
    values = numbers(rng.randint)
    # Braces mark what is filled in, so the templates write TeX's own braces as < and >.
    problem, solution = (_fill(part, values).replace("<", "{").replace(">", "}") for part in (problem, solution))
    answer = int(_fill("{" + answer + "}", values))
    return {"ID": "made-up", "Problem": problem, "Solution": f"{solution} \\boxed{{{answer}}}", "Answer": answer}


ROWS = {"gsm8k": gsm8k_row, "hellaswag": hellaswag_row, "aime24": aime24_row}


def draw_text(rng: random.Random, dataset: str | None = None) -> str:
    """One made-up row as a prompt, in the format of `dataset`, or of one of the three by chance."""
    if dataset is None:  # a HellaSwag text is a third as long as the others: three times as many, to be read as much
        (dataset,) = rng.choices(tuple(ROWS), weights=(1, 3, 1))
    return DATASETS[dataset].write(ROWS[dataset](rng))
