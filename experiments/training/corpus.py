"""What the toy models read: sums of one-digit numbers, and templated text in the formats of the three data sets."""

import math
import random
import re
from math import gcd
from pathlib import Path

import yaml

from depth_lib.data.datasets import dataset_named
from depth_lib.data.drawn import one_sum

from .tasks import is_held_out

_TEMPLATES = yaml.safe_load(Path(__file__).with_name("templates.yaml").read_text(encoding="utf-8"))


def draw_sum(rng: random.Random, held_out: bool) -> tuple[str, str]:
    """Question and answer of a sum of 2–6 digits 0–9, ("5 + 7 + 5 = ", "17"), from one side of `is_held_out`."""
    while True:
        question, answer = one_sum(rng, rng.randint(2, 6))
        if is_held_out(question) == held_out:
            return question, answer


def _fill(template: str, values: dict) -> str:
    scope = {**values, "comb": math.comb, "pow": pow}
    return re.sub(r"\{([^{}]+)\}", lambda found: str(eval(found[1], scope)), template)


def _numbers(template: dict, rng: random.Random) -> dict:
    """The numbers of a template, drawn as it says: `r` is randint."""
    return dict(eval(template["numbers"], {"r": rng.randint, "_power": _power, "_pair": _pair}))


def _power(r):
    base, modulus = r(2, 9), r(5, 13)
    while gcd(base, modulus) > 1 or base % modulus == 1:
        base, modulus = r(2, 9), r(5, 13)
    exponent, period = r(20, 400), next(k for k in range(1, modulus) if pow(base, k, modulus) == 1)
    return dict(a=base, m=modulus, n=exponent, p=period, s=exponent % period)


def _pair(r):
    g, x, y = r(2, 15), r(2, 12), r(2, 12)
    while gcd(x, y) > 1:
        x, y = r(2, 12), r(2, 12)
    return dict(g=g, x=x, y=y)


def gsm8k_row(rng: random.Random) -> dict:
    """A made-up word problem in GSM8K's schema."""
    template = rng.choice(_TEMPLATES["gsm8k"])
    (name, he), (other, _) = rng.sample(_TEMPLATES["people"], 2)
    day, day2 = rng.sample(_TEMPLATES["days"], 2)
    things, place, good, vehicle = (rng.choice(_TEMPLATES[of]) for of in ("things", "places", "goods", "vehicles"))
    words = dict(name=name, he=he, He=he.capitalize(), other=other, day=day, day2=day2)
    words |= dict(things=things, place=place, good=good, vehicle=vehicle)
    values = _numbers(template, rng) | words
    question, reasoning, answer = (_fill(template[part], values) for part in ("question", "reasoning", "answer"))
    return {"question": question, "answer": f"{reasoning}\n#### {answer}"}


def hellaswag_row(rng: random.Random) -> dict:
    """A made-up scene with one fitting and three unfitting endings in HellaSwag's schema (`label` is a string)."""
    label = rng.randrange(4)
    activities = rng.sample(_TEMPLATES["hellaswag"], 4)
    endings = [rng.choice(activity["endings"]) for activity in activities]
    seen = activities[label]
    who, the, he = rng.choice(_TEMPLATES["actors"])
    ctx_a, he_or_the = f"{who} is {rng.choice(seen['first'])}.", rng.choice((he, the))
    if rng.random() < 0.7:
        ctx_a += f" {rng.choice((he, the)).capitalize()} {rng.choice(seen['then'])}."
    return {
        "ind": rng.randrange(100000),
        "activity_label": seen["activity"],
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
    template = rng.choice(_TEMPLATES["aime24"])
    values = _numbers(template, rng)
    problem, solution = (
        _fill(template[part], values).replace("<", "{").replace(">", "}") for part in ("problem", "solution")
    )
    answer = int(_fill(template["answer"], values))
    return {"ID": "made-up", "Problem": problem, "Solution": f"{solution} \\boxed{{{answer}}}", "Answer": answer}


ROWS = {"gsm8k": gsm8k_row, "hellaswag": hellaswag_row, "aime24": aime24_row}


def draw_text(rng: random.Random, dataset: str | None = None) -> str:
    """One made-up row as a prompt, in the format of `dataset`, or of one of the three by chance."""
    if dataset is None:  # a HellaSwag text is a third as long as the others: three times as many, to be read as much
        (dataset,) = rng.choices(tuple(ROWS), weights=(1, 3, 1))
    return dataset_named(dataset).prompt(f"a made-up {dataset} row", ROWS[dataset](rng))
