"""Short stories from a small grammar: a hero, a place, a loss, a search and a happy end."""

from __future__ import annotations

from random import Random
from typing import NamedTuple


class Hero(NamedTuple):
    """An animal of the stories; each has its own name, home, treasure and way to be glad."""

    name: str
    home: str
    treasure: str
    joy: str


# A hero's facts never change, so that a model of a few million parameters keeps them together.
HEROES = {
    "cat": Hero("Mia", "village", "red ball", "purred"),
    "dog": Hero("Ben", "garden", "old map", "barked"),
    "fox": Hero("Finn", "forest", "golden key", "smiled"),
    "robot": Hero("Max", "workshop", "blue lamp", "beeped"),
    "dragon": Hero("Zoe", "castle", "silver coin", "laughed"),
    "bear": Hero("Tom", "valley", "warm hat", "hummed"),
    "rabbit": Hero("Ida", "meadow", "paper kite", "hopped"),
    "mouse": Hero("Nora", "library", "lost letter", "squeaked"),
    "owl": Hero("Leo", "old tower", "music box", "hooted"),
    "turtle": Hero("Anna", "harbor", "little bell", "clapped"),
}
TRAITS = ("small", "brave", "curious", "kind", "clever", "cheerful")
# fmt: off
HIDING_PLACES = (
    "under a stone", "behind a tree", "in a deep hole", "on a high shelf", "near the river",
    "inside an old box", "under the bridge",
)
# fmt: on
LESSONS = (
    "a friend makes every search shorter",
    "it is good to ask for help",
    "patience finds what hurry loses",
    "even a small step leads somewhere",
    "kind words open doors",
)
REQUESTS = (
    "Tell me a story.",
    "Tell me a short story.",
    "Write a story.",
    "Write a short story.",
    "Can you tell me a story?",
    "I would like a story.",
    "Please tell a story.",
)
REQUESTS_ABOUT = (
    "Tell me a story about {a_hero}.",
    "Write a short story about {a_hero}.",
    "Write a story about {a_hero}.",
    "Can you tell me a story about {a_hero}?",
    "Tell me a short story about {a_hero}.",
)
# fmt: on


def with_article(noun: str) -> str:
    """Put the indefinite article that the first letter asks for before a noun."""
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def story(rng: Random, kind: str) -> str:
    """Tell one story of three short paragraphs about a hero who lost a thing at home."""
    hero = HEROES[kind]
    friend_kind = rng.choice([other for other in HEROES if other != kind])
    friend = HEROES[friend_kind]
    opening = (
        f"Once upon a time, {with_article(rng.choice(TRAITS))} {kind} named {hero.name} lived in"
        f" {with_article(hero.home)}."
    )
    loss = (
        f"{hero.name} had {with_article(hero.treasure)} and loved it very much."
        f" One day the {hero.treasure} was gone."
    )
    search = (
        f"{hero.name} looked everywhere in the {hero.home}, but could not find it. Then"
        f" {with_article(friend_kind)} named {friend.name} came along."
        f' "Let us look together," said {friend.name}.'
    )
    end = (
        f"They searched until evening, and there, {rng.choice(HIDING_PLACES)}, lay the"
        f" {hero.treasure}! {hero.name} {hero.joy} with joy and thanked {friend.name}. Since that"
        f" day they knew that {rng.choice(LESSONS)}."
    )
    return f"{opening} {loss}\n\n{search}\n\n{end}"


def story_turns(rng: Random) -> list[tuple[str, str]]:
    """One request for a story, sometimes followed by a request for another."""
    turns: list[tuple[str, str]] = []
    for _ in range(1 if rng.random() < 0.8 else 2):
        kind = rng.choice(list(HEROES))
        if turns:
            request = rng.choice(("Another one, please.", "Tell me another story.", "One more."))
        elif rng.random() < 0.3:
            request = rng.choice(REQUESTS)
        else:
            request = rng.choice(REQUESTS_ABOUT).format(a_hero=with_article(kind))
        turns.append((request, story(rng, kind)))
    return turns
