"""Conversations that the starter model has not seen, as a text to measure it on.

    python -m resources.starter.sample           writes resources/texts/starter.txt

They are drawn from the corpus like those that it learned from, and are of the share that training
left out. Those with long answers are taken: what a user says the model never learned to predict,
and there a small change of its weights changes much that nobody sees.
"""

from __future__ import annotations

from random import Random

from resources import resource_path
from resources.starter.corpus import Conversation, make_conversation
from resources.starter.dataset import is_held_out
from resources.starter.tokenizer import END_OF_TEXT, TURN_END, TURN_START

SEED = "evaluation sample"
CHARACTERS = 28_000
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


if __name__ == "__main__":
    file = resource_path("texts", "starter.txt")
    file.write_text(make_sample(), encoding="utf-8")
    print(f"{file}: {file.stat().st_size:,} bytes")
