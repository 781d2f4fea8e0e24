"""Exercises with one right answer: counting, sums, lists, sorting, repeating."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

Turns = list[tuple[str, str]]

# fmt: off
COLLECTIONS: dict[str, tuple[str, ...]] = {
    "fruits": (
        "apple", "banana", "cherry", "grape", "lemon", "mango", "orange", "peach", "pear", "plum",
    ),
    "colors": (
        "red", "blue", "green", "yellow", "orange", "purple", "white", "black", "brown", "pink",
    ),
    "animals": (
        "cat", "dog", "horse", "lion", "bear", "rabbit", "mouse", "owl", "fox", "whale",
    ),
    "vegetables": (
        "carrot", "potato", "tomato", "onion", "pea", "bean", "spinach", "cabbage", "leek", "corn",
    ),
    "planets": (
        "Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune",
    ),
    "metals": ("iron", "gold", "silver", "copper", "tin", "lead", "zinc", "nickel"),
    "countries": (
        "France", "Italy", "Spain", "Japan", "Brazil", "Canada", "Egypt", "India", "Kenya",
        "Norway",
    ),
}
# fmt: on
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
# fmt: off
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
NUMBER_WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
)
SENTENCES = (
    "the cache is warm", "tokens flow like water", "a block holds sixteen tokens",
    "the sun is bright", "I like small models", "good morning to all", "hello world",
    "the fox runs home", "every step counts", "the queue is empty",
)
# fmt: on


def numbered(items: Sequence[str]) -> str:
    """Format items as a numbered Markdown list."""
    return "\n".join(f"{index}. {item}" for index, item in enumerate(items, 1))


def joined(items: Sequence[object]) -> str:
    """Format items on one line, separated by commas."""
    return ", ".join(str(item) for item in items)


def counting(rng: Random) -> Turns:
    """Count up, down or in steps."""
    kind = rng.random()
    if kind < 0.5:
        start = 1 if rng.random() < 0.9 else 0
        end = rng.choice((5, 10, 10, 15, 20, 20, 25, 30, rng.randint(2, 30), rng.randint(2, 60)))
        question = rng.choice(
            (
                "Count from {a} to {b}.",
                "Count {a} to {b}",
                "Please count from {a} to {b}.",
                "Can you count from {a} to {b}?",
                "Write the numbers from {a} to {b}.",
            )
        )
        if start == 1 and rng.random() < 0.3:
            question = "Count to {b}."
        return [(question.format(a=start, b=end), joined(range(start, end + 1)))]
    if kind < 0.6:
        # Any stretch of the numbers to 100: what follows 29, 39, 49 is learned at each of them.
        start = rng.randint(2, 90)
        end = min(100, start + rng.randint(2, 20))
        question = rng.choice(
            ("Count from {a} to {b}.", "Count {a} to {b}", "Write the numbers from {a} to {b}.")
        )
        return [(question.format(a=start, b=end), joined(range(start, end + 1)))]
    if kind < 0.65:
        return [
            (
                rng.choice(
                    (
                        "Count from 1 to 100.",
                        "Count to 100.",
                        "Count to one hundred.",
                        "Write the numbers from 1 to 100.",
                    )
                ),
                joined(range(1, 101)),
            )
        ]
    if kind < 0.84:
        step = rng.choice((2, 2, 3, 5, 10))
        end = step * rng.choice((5, 8, 10, 10, 12, 20))
        word = {2: "twos", 3: "threes", 5: "fives", 10: "tens"}[step]
        question = rng.choice(
            ("Count by {w} to {b}.", "Count by {w} up to {b}.", "Count in {w} to {b}.")
        )
        return [(question.format(w=word, b=end), joined(range(step, end + 1, step)))]
    start = rng.choice((5, 10, 10, 10, 12, 15, 20, 20, 30))
    question = rng.choice(
        (
            "Count down from {a}.",
            "Count down from {a} to 1.",
            "Countdown from {a}.",
            "Count backwards from {a} to 1.",
        )
    )
    return [(question.format(a=start), joined(range(start, 0, -1)))]


def sums(rng: Random) -> Turns:
    """Add, subtract or multiply small numbers, one question or a few in a row."""
    turns: Turns = []
    for _ in range(rng.choice((1, 2, 3))):
        operation = rng.choice("+-*")
        highest = 20 if rng.random() < 0.35 else 10
        if operation == "*":
            a, b = rng.randint(1, 10), rng.randint(1, 10)
            sign, word, result = rng.choice(("x", "*", "times")), "times", a * b
        elif operation == "+":
            a, b = rng.randint(1, highest), rng.randint(1, highest)
            sign, word, result = rng.choice(("+", "plus")), "plus", a + b
        else:
            a = rng.randint(1, highest)
            b = rng.randint(0, a)
            sign, word, result = rng.choice(("-", "minus")), "minus", a - b
        question = rng.choice(
            (
                "What is {a} {s} {b}?",
                "{a} {s} {b}",
                "{a} {s} {b} = ?",
                "Calculate {a} {s} {b}.",
                "How much is {a} {s} {b}?",
                "Compute {a} {s} {b}.",
            )
        ).format(a=a, b=b, s=sign)
        plain = {"plus": "+", "minus": "-", "times": "x"}[word]
        turns.append((question, f"{a} {plain} {b} = {result}"))
    return turns


def times_table(rng: Random) -> Turns:
    """Write one row of the multiplication table, or the table of squares."""
    if rng.random() < 0.15:
        rows = "\n".join(f"| {n} | {n * n} |" for n in range(1, 11))
        question = rng.choice(("Make a table of squares.", "Show a table of the squares to 10."))
        return [(question, f"| n | n x n |\n|---|---|\n{rows}")]
    n = rng.randint(2, 12)
    question = rng.choice(
        (
            "Write the multiplication table of {n}.",
            "Show me the {n} times table.",
            "Write the times table of {n}.",
            "Give me the multiplication table for {n}.",
        )
    )
    rows = "\n".join(f"{n} x {i} = {n * i}" for i in range(1, 11))
    return [(question.format(n=n), rows)]


def lists(rng: Random) -> Turns:
    """List some members of a collection, in its order or as bullet points."""
    name = rng.choice(list(COLLECTIONS))
    items = COLLECTIONS[name]
    turns: Turns = []
    count = rng.randint(2, len(items))
    word = NUMBER_WORDS[count] if rng.random() < 0.5 else str(count)
    if name == "planets" and rng.random() < 0.6:
        count = len(items)
        question = rng.choice(
            (
                "List the planets.",
                "Name the planets.",
                "List all planets.",
                "Which planets are there?",
            )
        )
    else:
        question = rng.choice(
            (
                "List {n} {c}.",
                "Name {n} {c}.",
                "Give me {n} {c}.",
                "Write a list of {n} {c}.",
                "Tell me {n} {c}.",
            )
        ).format(n=word, c=name)
    turns.append((question, numbered(items[:count])))
    if rng.random() < 0.25:
        follow = rng.choice(("Sort them.", "Sort the list.", "In alphabetical order, please."))
        turns.append((follow, numbered(sorted(items[:count], key=str.lower))))
    elif rng.random() < 0.15:
        turns.append(("How many are these?", f"The list has {count} {name}."))
    return turns


def calendar(rng: Random) -> Turns:
    """List days or months, or say which comes before or after another."""
    names, kind = rng.choice(((DAYS, "day"), (MONTHS, "month")))
    choice = rng.random()
    if choice < 0.35:
        label = "days of the week" if kind == "day" else "months of the year"
        question = rng.choice(
            ("List the {l}.", "Name the {l}.", "What are the {l}?", "Tell me the {l}.")
        )
        return [(question.format(l=label), numbered(names))]
    if choice < 0.5:
        question = rng.choice(
            ("List all {k}s twice.", "Write all {k}s two times.", "List the {k}s twice.")
        )
        return [(question.format(k=kind), joined(names) + "\n\n" + joined(names))]
    if choice < 0.6:
        number = len(names)
        place = "a week" if kind == "day" else "a year"
        return [(f"How many {kind}s are in {place}?", f"There are {number} {kind}s in {place}.")]
    index = rng.randrange(len(names))
    offset, word = rng.choice(((1, "after"), (-1, "before")))
    question = rng.choice(("Which {k} comes {w} {n}?", "What {k} is {w} {n}?"))
    other = names[(index + offset) % len(names)]
    return [
        (question.format(k=kind, w=word, n=names[index]), f"{other} comes {word} {names[index]}.")
    ]


def alphabet(rng: Random) -> Turns:
    """Write the alphabet, forwards, backwards, in capitals or several times."""
    choice = rng.random()
    spaced = " ".join(LETTERS)
    if choice < 0.4:
        question = rng.choice(
            (
                "Write the alphabet.",
                "Say the alphabet.",
                "What is the alphabet?",
                "Recite the alphabet.",
                "List the letters of the alphabet.",
            )
        )
        return [(question, spaced)]
    if choice < 0.6:
        question = rng.choice(
            ("Write the alphabet in capital letters.", "The alphabet in capitals")
        )
        return [(question, spaced.upper())]
    if choice < 0.8:
        question = rng.choice(("Write the alphabet backwards.", "The alphabet in reverse, please."))
        return [(question, " ".join(reversed(LETTERS)))]
    times = rng.choice((2, 3))
    word = {2: "twice", 3: "three times"}[times]
    question = rng.choice(("Write the alphabet {w}.", "Say the alphabet {w}."))
    return [(question.format(w=word), "\n".join([spaced] * times))]


def _words(rng: Random, count: int) -> list[str]:
    pool = [word for items in COLLECTIONS.values() for word in items]
    return rng.sample(sorted(set(pool)), count)


def sorting(rng: Random) -> Turns:
    """Sort three small numbers, or find the largest or the smallest."""
    numbers = rng.sample(range(1, 10), 3)
    if rng.random() < 0.6:
        question = rng.choice(
            ("Sort these numbers: {x}", "Sort {x}.", "Put in order: {x}", "Sort the numbers {x}.")
        )
        return [(question.format(x=joined(numbers)), joined(sorted(numbers)))]
    question, result = rng.choice(
        (
            ("Which is the largest: {x}?", max(numbers)),
            ("What is the largest of {x}?", max(numbers)),
            ("Which is the smallest: {x}?", min(numbers)),
        )
    )
    word = "smallest" if "small" in question else "largest"
    return [(question.format(x=joined(numbers)), f"The {word} number is {result}.")]


def repeating(rng: Random) -> Turns:
    """Say something again, once or several times."""
    text = rng.choice(SENTENCES) if rng.random() < 0.6 else _words(rng, 1)[0]
    if rng.random() < 0.7:
        question = rng.choice(
            (
                "Repeat after me: {t}",
                "Say: {t}",
                "Repeat: {t}",
                "Please repeat this: {t}",
                "Echo {t}",
            )
        )
        return [(question.format(t=text), text)]
    times = rng.randint(2, 5)
    word = rng.choice((NUMBER_WORDS[times], str(times)))
    question = rng.choice(('Say "{t}" {n} times.', "Repeat {t} {n} times.", "Write {t} {n} times."))
    return [(question.format(t=text, n=word), "\n".join([text] * times))]


EXERCISES: tuple[tuple[Callable[[Random], Turns], float], ...] = (
    (counting, 4.0),
    (sums, 5.0),
    (times_table, 1.5),
    (lists, 3.0),
    (calendar, 2.0),
    (alphabet, 1.0),
    (sorting, 0.7),
    (repeating, 1.5),
)


def practice_turns(rng: Random) -> Turns:
    """One exercise of a kind drawn by weight."""
    functions, weights = zip(*EXERCISES, strict=True)
    chosen: Callable[[Random], Turns] = rng.choices(functions, weights)[0]
    return chosen(rng)
