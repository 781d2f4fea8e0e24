"""Text to tokens and back.

Reads in this order: `prompts` (text, token ids or chat messages), `tokenizer` (chat templates),
`detokenizer` (incremental text, stop sequences).
"""
