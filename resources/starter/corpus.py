"""The text that the starter models learn from: conversations made by rules, from one seed.

Nothing is downloaded and nothing was written by another model: every conversation is drawn from
the tables of the modules beside this one. The same seed gives the same conversations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from resources.starter.corpus_code import code_turns
from resources.starter.corpus_knowledge import COMPARISONS, TOPICS, Topic
from resources.starter.corpus_practice import practice_turns
from resources.starter.corpus_product import (
    PRODUCT,
    SMALL_TALK,
    UNKNOWN_ANSWERS,
    UNKNOWN_QUESTIONS,
    UNKNOWN_SUBJECTS,
    Answered,
)
from resources.starter.corpus_stories import story_turns

Turns = list[tuple[str, str]]

# fmt: off
WHAT_QUESTIONS = (
    "What is {x}?", "What does {x} mean?", "Explain {x}.", "Can you explain {x}?", "Define {x}.",
    "Tell me about {x}.", "What is meant by {x}?", "Describe {x}.", "{x}?", "Explain {x} to me.",
    "How does {x} work?", "I keep reading about {x}. What is it?", "What does {x} do?",
    "Please explain {x} in simple words.", "What do you know about {x}?", "Explain {x} simply.",
)
WHY_QUESTIONS = (
    "Why does {x} matter?", "Why is {x} important?", "Why should I care about {x}?",
    "What is {x} good for?", "Why do I need {x}?",
)
TUNE_QUESTIONS = (
    "How do I improve {x}?", "How do I tune {x}?", "How can I get better {x}?",
    "What should I do about {x}?", "Give me a tip for {x}.", "How should I set {x}?",
)
WHY_FOLLOW_UPS = ("Why does it matter?", "Why is that important?", "Why does that matter?", "Why?")
TUNE_FOLLOW_UPS = (
    "How do I improve it?", "How do I tune it?", "How can I improve that?", "Give me a tip.",
    "What should I do?", "How should I set it?",
)
COMPARISON_QUESTIONS = (
    "What is the difference between {a} and {b}?", "Compare {a} and {b}.", "{a} or {b}?",
    "How do {a} and {b} differ?", "{a} vs {b}",
)
SYSTEM_PROMPTS = (
    "You are a helpful assistant.", "You are a helpful assistant. Answer briefly.",
    "You are Inferdeck's assistant.", "Answer in plain words.", "You are a friendly helper.",
    "Be concise.", "You explain inference to beginners.",
    "You are a careful assistant who answers in short sentences.",
)
# fmt: on


@dataclass(frozen=True)
class Conversation:
    """A chat: an optional system prompt, and (user, assistant) turns."""

    system: str | None
    turns: tuple[tuple[str, str], ...]

    def messages(self) -> list[dict[str, str]]:
        """The chat as the list of role/content dictionaries that a chat template takes."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        body = [
            {"role": role, "content": text}
            for turn in self.turns
            for role, text in zip(("user", "assistant"), turn, strict=True)
        ]
        return head + body


def topic_turns(rng: Random) -> Turns:
    """Ask what a term means, why it matters or how to tune it, with follow-ups on the same term."""
    topic = rng.choice(TOPICS)
    name = rng.choice(topic.names)
    first = rng.random()
    if first < 0.7:
        turns = [(rng.choice(WHAT_QUESTIONS).format(x=name), rng.choice(topic.what))]
    elif first < 0.85:
        turns = [(rng.choice(WHY_QUESTIONS).format(x=name), rng.choice(topic.why))]
    else:
        turns = [(rng.choice(TUNE_QUESTIONS).format(x=name), rng.choice(topic.tune))]
    return turns + _topic_follow_ups(rng, topic)


def _topic_follow_ups(rng: Random, topic: Topic) -> Turns:
    turns: Turns = []
    if rng.random() < 0.25:
        turns.append((rng.choice(WHY_FOLLOW_UPS), rng.choice(topic.why)))
    if rng.random() < 0.25:
        turns.append((rng.choice(TUNE_FOLLOW_UPS), rng.choice(topic.tune)))
    return turns


def comparison_turns(rng: Random) -> Turns:
    """Ask for the difference between two terms."""
    pair = rng.choice(COMPARISONS)
    a, b = (pair.left, pair.right) if rng.random() < 0.5 else (pair.right, pair.left)
    return [(rng.choice(COMPARISON_QUESTIONS).format(a=a, b=b), rng.choice(pair.answers))]


def _answered_turns(rng: Random, entries: tuple[Answered, ...]) -> Turns:
    entry = rng.choice(entries)
    return [(rng.choice(entry.questions), rng.choice(entry.answers))]


def product_turns(rng: Random) -> Turns:
    """Ask about the program."""
    return _answered_turns(rng, PRODUCT)


def small_talk_turns(rng: Random) -> Turns:
    """Greet, thank, or ask the model about itself."""
    return _answered_turns(rng, SMALL_TALK)


def unknown_turns(rng: Random) -> Turns:
    """Ask about a subject that the model does not know, half of the time one that is made up."""
    subject = rng.choice(UNKNOWN_SUBJECTS) if rng.random() < 0.5 else _made_up_name(rng)
    question = rng.choice(UNKNOWN_QUESTIONS).format(s=subject)
    return [(question, rng.choice(UNKNOWN_ANSWERS))]


def _made_up_name(rng: Random) -> str:
    # Words outside the tokenizer's own reach the model as short pieces; so do these.
    words = [
        "".join(rng.choice("bcdfghklmnprstvw") + rng.choice("aeiou") for _ in range(size))
        + rng.choice(("", "n", "r", "s", "th", "ck", "ng"))
        for size in rng.choices((1, 2, 3), k=rng.choice((1, 1, 2, 3)))
    ]
    name = " ".join(words)
    return rng.choice((name, name.title(), "the " + name))


# The share of each kind among the parts of conversations.
KINDS: tuple[tuple[Callable[[Random], Turns], float], ...] = (
    (topic_turns, 0.24),
    (comparison_turns, 0.04),
    (product_turns, 0.08),
    (small_talk_turns, 0.13),
    (unknown_turns, 0.05),
    (practice_turns, 0.38),
    (code_turns, 0.04),
    (story_turns, 0.07),
)


def spoken(rng: Random, question: str) -> str:
    """Vary a question as people type it: in lower case, without its last mark, with a please."""
    choice = rng.random()
    if choice < 0.15:
        question = question.lower()
    elif choice < 0.25 and question[-1:] in ".?":
        question = question[:-1]
    elif choice < 0.35 and question[-1:] in ".?":
        question = question[:-1].lower()
    elif choice < 0.40 and question[-1:] == "." and len(question) > 8:
        question = "Please " + question[0].lower() + question[1:]
    elif choice < 0.43 and len(question) > 8:
        question = rng.choice(("Hi! ", "Hello, ", "OK, ", "And ")) + question
    return question


def make_conversation(rng: Random) -> Conversation:
    """Draw one conversation: one to four parts of any kind, one after another."""
    functions, weights = zip(*KINDS, strict=True)
    system = rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.2 else None
    turns: Turns = []
    for _ in range(rng.choices((1, 2, 3, 4), (0.55, 0.25, 0.12, 0.08))[0]):
        part: Callable[[Random], Turns] = rng.choices(functions, weights)[0]
        turns += [(_spoken_unless_literal(rng, ask), answer) for ask, answer in part(rng)]
    return Conversation(system, tuple(turns))


def _spoken_unless_literal(rng: Random, question: str) -> str:
    # A quoted or repeated text must stay as it is: the answer copies it letter by letter.
    literal = ":" in question or '"' in question or question.startswith(("Echo", "Repeat", "Write"))
    return question if literal else spoken(rng, question)


def conversations(seed: int) -> Iterator[Conversation]:
    """Yield conversations without end; the same seed yields the same ones."""
    rng = Random(seed)
    while True:
        yield make_conversation(rng)
