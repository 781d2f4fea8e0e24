"""Prompts as text, for servers whose token ids are not known: common words, each about one token
of most vocabularies."""

from __future__ import annotations

import random

WORDS = (
    "the", "of", "and", "to", "in", "is", "you", "that", "it", "he", "was", "for", "on", "are",
    "as", "with", "his", "they", "at", "be", "this", "have", "from", "or", "one", "had", "by",
    "but", "not", "what", "all", "were", "we", "when", "your", "can", "said", "there", "use", "an",
    "each", "which", "she", "do", "how", "their", "if", "will", "up", "other", "about", "out",
    "many", "then", "them", "these", "so", "some", "her", "would", "make", "like", "him", "into",
    "time", "has", "look", "two", "more", "write", "go", "see", "number", "no", "way", "could",
    "people", "my", "than", "first", "water", "been", "call", "who", "its", "now", "find", "long",
    "down", "day", "did", "get", "come", "made", "may", "part",
)  # fmt: skip

TEXT = " ".join(WORDS)


def text_of(token_ids: tuple[int, ...]) -> str:
    """A text of as many words as there are ids, the same for the same ids: prompts that share a
    beginning still do."""
    return " ".join(WORDS[token % len(WORDS)] for token in token_ids)


def stand_in_ids() -> list[int]:
    """A vocabulary for workloads whose prompts become text."""
    ids = list(range(len(WORDS) * 64))
    random.Random("words").shuffle(ids)
    return ids
