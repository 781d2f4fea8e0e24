"""Rows of tokens for training: whole conversations packed one after another.

    <|im_start|>user ... <|im_end|> <|im_start|>assistant ANSWER <|im_end|> <|endoftext|> ...
                                                          ^^^^^^^^^^^^^^^^^
Only what the model itself will have to write carries loss: the marked tokens of each answer.
"""

from __future__ import annotations

from random import Random
from zlib import crc32

import torch
from transformers import PreTrainedTokenizerFast

from resources.starter.corpus import Conversation, make_conversation
from resources.starter.tokenizer import END_OF_TEXT, TURN_END, TURN_START

IGNORED = -100
HELD_OUT_ONE_IN = 40


def is_held_out(conversation: Conversation) -> bool:
    """Whether a conversation is kept from training. It depends on the text alone."""
    return crc32(repr(conversation).encode()) % HELD_OUT_ONE_IN == 0


def encode_conversation(
    tokenizer: PreTrainedTokenizerFast, conversation: Conversation
) -> tuple[list[int], list[bool]]:
    """Return the token ids of a conversation, and for each whether it carries loss."""
    pieces: list[tuple[str, bool]] = []
    for message in conversation.messages():
        answers = message["role"] == "assistant"
        pieces.append((f"{TURN_START}{message['role']}\n", False))
        pieces.append((message["content"] + TURN_END, answers))
        pieces.append(("\n", False))
    pieces.append((END_OF_TEXT, False))
    encoded = tokenizer([text for text, _ in pieces], add_special_tokens=False)["input_ids"]
    token_ids: list[int] = []
    learned: list[bool] = []
    for ids, (_, learn) in zip(encoded, pieces, strict=True):
        token_ids += ids
        learned += [learn] * len(ids)
    return token_ids, learned


def make_row(
    tokenizer: PreTrainedTokenizerFast, rng: Random, length: int, held_out: bool
) -> tuple[list[int], list[int]]:
    """Fill one row of `length` tokens; return its inputs and its labels."""
    token_ids: list[int] = []
    learned: list[bool] = []
    while len(token_ids) <= length:
        conversation = make_conversation(rng)
        if is_held_out(conversation) == held_out:
            ids, learn = encode_conversation(tokenizer, conversation)
            token_ids += ids
            learned += learn
    inputs = token_ids[:length]
    labels = [
        token if learn else IGNORED
        for token, learn in zip(token_ids[1 : length + 1], learned[1 : length + 1], strict=True)
    ]
    return inputs, labels


def make_batch(
    tokenizer: PreTrainedTokenizerFast, seed: str, rows: int, length: int, held_out: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and labels of shape [rows, length]. The same seed gives the same batch."""
    rng = Random(seed)
    made = [make_row(tokenizer, rng, length, held_out) for _ in range(rows)]
    return torch.tensor([row[0] for row in made]), torch.tensor([row[1] for row in made])
