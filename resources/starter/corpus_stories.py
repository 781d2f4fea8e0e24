"""Short stories from a small grammar: a hero, a place, a loss, a search and a happy end."""

from __future__ import annotations

from random import Random

# fmt: off
NAMES = (
    "Mia", "Tom", "Lena", "Sam", "Nora", "Ben", "Ida", "Max", "Zoe", "Leo", "Anna", "Finn",
)
HEROES = {
    "cat": "purred", "dog": "barked", "fox": "smiled", "robot": "beeped", "dragon": "laughed",
    "bear": "hummed", "rabbit": "hopped", "mouse": "squeaked", "owl": "hooted",
    "turtle": "clapped", "pony": "cheered", "penguin": "danced",
}
# fmt: on
TRAITS = ("small", "brave", "curious", "kind", "clever", "quiet", "cheerful", "young")
# fmt: off
PLACES = (
    "forest", "village", "castle", "garden", "valley", "city", "library", "workshop", "harbor",
)
THINGS = (
    "red ball", "golden key", "old map", "blue lamp", "little bell", "silver coin", "paper kite",
    "warm hat", "music box", "lost letter",
)
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
# fmt: off
REQUESTS = (
    "Tell me a story.", "Tell me a short story.", "Write a story.", "Write a short story.",
    "Can you tell me a story?", "I would like a story.", "Please tell a story.",
)
REQUESTS_ABOUT = (
    "Tell me a story about {a_hero}.", "Write a short story about {a_hero}.",
    "Write a story about {a_hero}.", "Can you tell me a story about {a_hero}?",
    "Tell me a short story about {a_hero}.",
    "Tell me a story about {a_hero} and {a_thing}.",
    "Write a short story about {a_hero} in a {place}.",
)
# fmt: on


def with_article(noun: str) -> str:
    """Put the indefinite article that the first letter asks for before a noun."""
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def story(rng: Random, hero: str, thing: str, place: str) -> str:
    """Tell one story of three short paragraphs about a hero who lost a thing in a place."""
    name, friend_name = rng.sample(NAMES, 2)
    friend = rng.choice([kind for kind in HEROES if kind != hero])
    trait = rng.choice(TRAITS)
    hiding_place = rng.choice(HIDING_PLACES)
    opening = rng.choice(
        (
            f"Once upon a time, {with_article(trait)} {hero} named {name} lived in a {place}.",
            f"In a {place} there lived {with_article(trait)} {hero} named {name}.",
        )
    )
    loss = rng.choice(
        (
            f"{name} had {with_article(thing)} and loved it very much."
            f" One day the {thing} was gone.",
            f"Every day {name} played with {with_article(thing)}."
            f" One morning the {thing} was gone.",
        )
    )
    search = (
        f"{name} looked everywhere in the {place}, but could not find it. Then"
        f" {with_article(friend)} named {friend_name} came along. "
        f'"Let us look together," said {friend_name}.'
    )
    end = (
        f"They searched until evening, and there, {hiding_place}, lay the {thing}! {name}"
        f" {HEROES[hero]} with joy and thanked {friend_name}. Since that day they knew that"
        f" {rng.choice(LESSONS)}."
    )
    return f"{opening} {loss}\n\n{search}\n\n{end}"


def story_turns(rng: Random) -> list[tuple[str, str]]:
    """One request for a story, sometimes followed by a request for another."""
    turns: list[tuple[str, str]] = []
    for _ in range(1 if rng.random() < 0.8 else 2):
        hero = rng.choice(list(HEROES))
        thing, place = rng.choice(THINGS), rng.choice(PLACES)
        if turns:
            request = rng.choice(("Another one, please.", "Tell me another story.", "One more."))
        elif rng.random() < 0.4:
            request = rng.choice(REQUESTS)
        else:
            request = rng.choice(REQUESTS_ABOUT).format(
                a_hero=with_article(hero), a_thing=with_article(thing), place=place
            )
        turns.append((request, story(rng, hero, thing, place)))
    return turns
