"""Text to tokens and back.

Reads in this order: `tokenizer` (text, token ids or chat messages to a prompt), `detokenizer`
(incremental text, stop sequences).
"""
