"""Conversations of the corpus as files that ship with the program.

    python -m resources.starter.sample
        resources/texts/starter.txt            to evaluate the starter model on
        resources/texts/starter_chats.jsonl    to calibrate it with

The model has not seen those of the evaluation: they are of the share that training left out. Only
conversations with long answers are used, as the model never learned to predict what a user says.
"""

from __future__ import annotations

import json
from itertools import islice
from random import Random

from resources import resource_path
from resources.starter.corpus import Conversation, conversations, make_conversation
from resources.starter.dataset import is_held_out
from resources.starter.tokenizer import END_OF_TEXT, TURN_END, TURN_START

SEED = "evaluation sample"
CHARACTERS = 28_000
CHATS, CHATS_SEED = 400, 1
ANSWERED = 4.0
"""Least number of characters answered for each one asked."""


def written(conversation: Conversation) -> str:
    """The conversation as the tokenizer reads it in training."""
    turns = [
        f"{TURN_START}{m['role']}\n{m['content']}{TURN_END}\n" for m in conversation.messages()
    ]
    return "".join(turns) + END_OF_TEXT


def is_mostly_answer(conversation: Conversation) -> bool:
    asked = len(conversation.system or "") + sum(len(user) for user, _ in conversation.turns)
    return sum(len(answer) for _, answer in conversation.turns) >= ANSWERED * asked


def make_sample(characters: int = CHARACTERS) -> str:
    """Different conversations, one after another, of at least `characters` in all."""
    rng = Random(SEED)
    chosen: dict[str, None] = {}
    length = 0
    while length < characters:
        conversation = make_conversation(rng)
        text = written(conversation)
        if is_held_out(conversation) and is_mostly_answer(conversation) and text not in chosen:
            chosen[text] = None
            length += len(text)
    return "".join(chosen)


def make_chats(count: int = CHATS) -> str:
    """JSONL: the messages of the first conversations of a training."""
    chats = islice(conversations(CHATS_SEED), count)
    return "".join(json.dumps({"messages": chat.messages()}) + "\n" for chat in chats)


if __name__ == "__main__":
    for name, text in (("starter.txt", make_sample()), ("starter_chats.jsonl", make_chats())):
        file = resource_path("texts", name)
        file.write_text(text, encoding="utf-8")
        print(f"{file}: {file.stat().st_size:,} bytes")
