"""Templates of the training text: made-up rows in the schemas of GSM8K, HellaSwag and AIME 2024."""

from math import gcd

PEOPLE = (
    ("Ava", "she"),
    ("Ben", "he"),
    ("Carla", "she"),
    ("Dan", "he"),
    ("Ella", "she"),
    ("Finn", "he"),
    ("Grace", "she"),
    ("Hugo", "he"),
    ("Iris", "she"),
    ("Jack", "he"),
    ("Leo", "he"),
    ("Mia", "she"),
    ("Noah", "he"),
    ("Olga", "she"),
    ("Paul", "he"),
    ("Rosa", "she"),
    ("Sam", "he"),
    ("Tina", "she"),
    ("Victor", "he"),
    ("Wendy", "she"),
)
THINGS = (
    "apples",
    "books",
    "marbles",
    "stickers",
    "pencils",
    "oranges",
    "shells",
    "candles",
    "coins",
    "stamps",
    "flowers",
    "muffins",
    "eggs",
    "buttons",
    "cards",
    "lemons",
)
PLACES = ("shop", "school", "library", "market", "garage", "bakery", "kitchen", "barn")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
GOODS = ("bike", "tent", "guitar", "camera", "lamp", "jacket", "drum", "telescope")
VEHICLES = ("train", "bus", "truck", "car", "boat")

# (draw the numbers, question, reasoning, final answer); <<...>> are GSM8K's calculator marks.
GSM8K = (
    (
        lambda r: dict(a=r(5, 40), b=r(5, 40), c=r(1, 9)),
        "{name} buys {a} {things} on {day} and {b} more on {day2}. {He} gives {c} of them to {other}. "
        "How many {things} does {name} have left?",
        "{name} buys {a} + {b} = <<{a}+{b}={a+b}>>{a+b} {things}.\n"
        "{He} has {a+b} - {c} = <<{a+b}-{c}={a+b-c}>>{a+b-c} {things} left.",
        "a+b-c",
    ),
    (
        lambda r: dict(p=r(2, 9), k=r(2, 9)),
        "One box of {things} costs ${p}. {name} buys {k} boxes and pays with $100. How much change does {he} get?",
        "The boxes cost {k} * {p} = $<<{k}*{p}={k*p}>>{k*p}.\n"
        "{name} gets 100 - {k*p} = $<<100-{k*p}={100-k*p}>>{100-k*p} back.",
        "100-k*p",
    ),
    (
        lambda r: dict(w=r(5, 20), h=r(2, 8), d=r(2, 6)),
        "{name} earns ${w} an hour at the {place}. {He} works {h} hours a day for {d} days. "
        "How many dollars does {he} earn?",
        "{name} works {h} * {d} = <<{h}*{d}={h*d}>>{h*d} hours.\n"
        "{He} earns {h*d} * {w} = $<<{h*d}*{w}={h*d*w}>>{h*d*w}.",
        "h*d*w",
    ),
    (
        lambda r: dict(b=r(3, 12), k=r(4, 12), c=r(2, 10)),
        "There are {b} boxes in the {place}. Each box holds {k} {things}. If {c} {things} are sold, how many are left?",
        "The boxes hold {b} * {k} = <<{b}*{k}={b*k}>>{b*k} {things}.\n"
        "Then {b*k} - {c} = <<{b*k}-{c}={b*k-c}>>{b*k-c} are left.",
        "b*k-c",
    ),
    (
        lambda r: dict(a=r(3, 50)),
        "{name} has {a} {things}. {other} has twice as many. How many {things} do they have together?",
        "{other} has 2 * {a} = <<2*{a}={2*a}>>{2*a} {things}.\n"
        "Together they have {a} + {2*a} = <<{a}+{2*a}={3*a}>>{3*a} {things}.",
        "3*a",
    ),
    (
        lambda r: dict(q=r(2, 12), k=r(2, 9)),
        "{name} has {q*k} {things} and shares them equally among {k} friends. How many {things} does each friend get?",
        "Each friend gets {q*k} / {k} = <<{q*k}/{k}={q}>>{q} {things}.",
        "q",
    ),
    (
        lambda r: dict(p=r(5, 30), q=r(5, 30), d=r(2, 9)),
        "{name} reads {p} pages every morning and {q} pages every evening. How many pages does {he} read in {d} days?",
        "{name} reads {p} + {q} = <<{p}+{q}={p+q}>>{p+q} pages a day.\n"
        "In {d} days {he} reads {p+q} * {d} = <<{p+q}*{d}={(p+q)*d}>>{(p+q)*d} pages.",
        "(p+q)*d",
    ),
    (
        lambda r: dict(v=10 * r(2, 9), h=r(2, 6), x=r(5, 60)),
        "A {vehicle} travels {v} miles an hour for {h} hours and then {x} miles more. How many miles does it travel?",
        "In {h} hours it travels {v} * {h} = <<{v}*{h}={v*h}>>{v*h} miles.\n"
        "In all it travels {v*h} + {x} = <<{v*h}+{x}={v*h+x}>>{v*h+x} miles.",
        "v*h+x",
    ),
    (
        lambda r: dict(a=r(4, 40), b=r(2, 15), c=r(2, 12)),
        "{name} is {a} years old. {other} is {b} years older. How old will {other} be in {c} years?",
        "{other} is {a} + {b} = <<{a}+{b}={a+b}>>{a+b} years old.\n"
        "In {c} years {other} will be {a+b} + {c} = <<{a+b}+{c}={a+b+c}>>{a+b+c}.",
        "a+b+c",
    ),
    (
        lambda r: dict(h=r(5, 50), s=r(3, 15), w=r(2, 9)),
        "{name} wants to buy a {good} for ${h+s*w}. {He} already has ${h} and saves ${s} every week. "
        "How many weeks does {he} need?",
        "{name} needs {h+s*w} - {h} = $<<{h+s*w}-{h}={s*w}>>{s*w} more.\n"
        "That takes {s*w} / {s} = <<{s*w}/{s}={w}>>{w} weeks.",
        "w",
    ),
)

# An activity: label, what is seen first (after "A man is"), what comes next (after "He"), fitting endings (after "he").
HELLASWAG = (
    (
        "Baking cookies",
        ("standing in a kitchen with a bowl of flour", "mixing butter and sugar in a bowl", "rolling dough on a table"),
        ("adds two eggs and stirs the dough", "cuts the dough into small circles", "puts the cookies on a tray"),
        (
            "puts the tray in the oven and closes the door.",
            "takes the hot cookies out of the oven.",
            "lets the cookies cool and tastes one.",
        ),
    ),
    (
        "Washing the car",
        ("standing next to a car with a bucket of water", "spraying a red car with a hose", "holding a wet sponge"),
        ("rubs the doors with soap", "washes the wheels with a brush", "wipes the windows with the sponge"),
        (
            "rinses the soap off with the hose.",
            "dries the car with a clean towel.",
            "pours the dirty water on the ground.",
        ),
    ),
    (
        "Playing the guitar",
        ("sitting on a chair with a guitar", "holding a guitar on a small stage", "sitting in a room with a guitar"),
        ("tunes the strings one by one", "plays a slow song", "looks at the camera and starts to sing"),
        (
            "plays the last notes and puts the guitar down.",
            "smiles while the people clap.",
            "stops to talk about the song.",
        ),
    ),
    (
        "Walking the dog",
        ("walking in a park with a small dog", "putting a leash on a brown dog", "standing on the grass with a dog"),
        ("throws a ball across the grass", "runs along the path with the dog", "calls the dog and holds up a toy"),
        (
            "waits until the dog brings the ball back.",
            "gives the dog some water to drink.",
            "sits down on a bench next to the dog.",
        ),
    ),
    (
        "Painting a fence",
        ("standing in front of a wooden fence with a brush", "opening a can of white paint", "cleaning an old fence"),
        ("dips the brush in the paint", "paints the boards from top to bottom", "moves the ladder along the fence"),
        (
            "paints the last board and steps back to look.",
            "closes the can and washes the brush.",
            "waits for the paint to dry in the sun.",
        ),
    ),
    (
        "Swimming",
        ("standing at the edge of a pool", "putting on goggles next to a pool", "sitting on the side of a pool"),
        ("jumps into the water", "swims to the other side of the pool", "dives under the water"),
        (
            "climbs out of the pool and takes a towel.",
            "turns around and swims back.",
            "holds on to the wall and breathes slowly.",
        ),
    ),
    (
        "Making tea",
        ("filling a kettle with water", "standing in a kitchen with a cup", "putting a kettle on the stove"),
        ("puts a tea bag in the cup", "pours the hot water into the cup", "adds a spoon of sugar"),
        (
            "stirs the tea and drinks it slowly.",
            "carries the cup to the table.",
            "takes the bag out and adds some milk.",
        ),
    ),
    (
        "Riding a bike",
        ("sitting on a bike in front of a house", "putting on a helmet next to a bike", "riding a bike on a path"),
        ("rides down the hill", "turns the corner and goes faster", "jumps over a small ramp"),
        (
            "stops at the end of the road and gets off.",
            "falls on the grass and laughs.",
            "waves to the camera and rides away.",
        ),
    ),
    (
        "Building a snowman",
        (
            "playing in the snow in front of a house",
            "rolling a big ball of snow",
            "kneeling in the snow with gloves on",
        ),
        (
            "puts one ball of snow on top of the other",
            "makes a small ball for the head",
            "adds two stones for the eyes",
        ),
        ("puts a hat on the snowman and smiles.", "uses a carrot for the nose.", "takes a photo of the snowman."),
    ),
    (
        "Planting flowers",
        ("kneeling in a garden with a shovel", "carrying pots of flowers to a garden", "digging a hole in the ground"),
        ("puts a plant in the hole", "fills the hole with dark soil", "takes the flowers out of the pot"),
        (
            "presses the soil down and adds some water.",
            "waters the flowers with a green can.",
            "cleans the shovel and goes inside.",
        ),
    ),
)
ACTORS = (
    ("A man", "the man", "he"),
    ("A woman", "the woman", "she"),
    ("A boy", "the boy", "he"),
    ("A girl", "the girl", "she"),
    ("An old man", "the old man", "he"),
    ("A young woman", "the young woman", "she"),
)


def _period(base, modulus):
    power, steps = base % modulus, 1
    while power != 1:
        power, steps = power * base % modulus, steps + 1
    return steps


def _power(r):
    base, modulus = r(2, 9), r(5, 13)
    while gcd(base, modulus) > 1 or base % modulus == 1:
        base, modulus = r(2, 9), r(5, 13)
    exponent, period = r(20, 400), _period(base, modulus)
    return dict(a=base, m=modulus, n=exponent, p=period, s=exponent % period)


def _pair(r):
    g, x, y = r(2, 15), r(2, 12), r(2, 12)
    while gcd(x, y) > 1:
        x, y = r(2, 12), r(2, 12)
    return dict(g=g, x=x, y=y)


AIME24 = (
    (
        _power,
        "Find the remainder when ${a}^<{n}>$ is divided by ${m}$.",
        "The powers of ${a}$ modulo ${m}$ repeat with period ${p}$, and ${n} = {p} * {n//p} + {s}$, "
        "so ${a}^<{n}> = {a}^<{s}> = {pow(a,s,m)}$ modulo ${m}$.",
        "pow(a,s,m)",
    ),
    (
        lambda r: dict(a=r(1, 6), b=r(1, 4), p=(2, 2, 3)[(i := r(0, 2))], q=(3, 5, 5)[i]),
        "Find the number of positive divisors of ${p**a*q**b}$.",
        "Since ${p**a*q**b} = {p}^{a} * {q}^{b}$, there are $({a}+1)({b}+1) = {(a+1)*(b+1)}$ divisors.",
        "(a+1)*(b+1)",
    ),
    (
        lambda r: dict(n=r(5, 30)),
        "Find the sum of the first ${n}$ positive odd integers.",
        "The sum of the first $n$ odd integers is $n^2$, so the sum is ${n}^2 = {n*n}$.",
        "n*n",
    ),
    (
        lambda r: dict(n=r(5, 18)),
        "There are ${n}$ players in a club. Each pair of players plays one game. Find the number of games.",
        "There is one game for each pair, so there are $\\tfrac<{n} * {n-1}><2> = {comb(n,2)}$ games.",
        "comb(n,2)",
    ),
    (
        lambda r: dict(n=r(5, 12)),
        "Find the number of ways to choose $3$ of ${n}$ different books.",
        "The number of ways is $\\binom<{n}><3> = {comb(n,3)}$.",
        "comb(n,3)",
    ),
    (
        _pair,
        "Find the greatest common divisor of ${g*x}$ and ${g*y}$.",
        "We have ${g*x} = {g} * {x}$ and ${g*y} = {g} * {y}$, and ${x}$ and ${y}$ have no common factor.",
        "g",
    ),
    (
        lambda r: dict(u=r(1, 12), v=r(1, 12)),
        "Let $r$ and $s$ be the roots of $x^2 - {u+v}x + {u*v} = 0$. Find $r^2 + s^2$.",
        "Here $r + s = {u+v}$ and $rs = {u*v}$, so "
        "$r^2 + s^2 = {u+v}^2 - 2 * {u*v} = {(u+v)**2} - {2*u*v} = {u*u+v*v}$.",
        "u*u+v*v",
    ),
    (
        lambda r: dict(k=r(3, 15), n=10 * r(5, 60)),
        "Find the number of positive integers less than or equal to ${n}$ that are divisible by ${k}$.",
        "The largest multiple is ${k} * {n//k} = {n//k*k}$, so there are ${n//k}$ such integers.",
        "n//k",
    ),
    (
        lambda r: dict(a=r(3, 25), b=r(3, 25)),
        "A rectangle has area ${a*b}$ and perimeter ${2*(a+b)}$. Find the square of the length of its diagonal.",
        "Let the sides be $a$ and $b$. Then $a + b = {a+b}$ and $ab = {a*b}$, so "
        "$a^2 + b^2 = {(a+b)**2} - {2*a*b} = {a*a+b*b}$.",
        "a*a+b*b",
    ),
    (
        lambda r: dict(k=r(1, 6) * 2 + 1, m=r(10, 60)),
        "The sum of ${k}$ consecutive integers is ${k*m}$. Find the largest of them.",
        "The middle integer is $\\tfrac<{k*m}><{k}> = {m}$, so the largest is ${m} + {k//2} = {m+k//2}$.",
        "m+k//2",
    ),
)
