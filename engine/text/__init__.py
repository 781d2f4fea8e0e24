"""Text to tokens and back.

tokenizer.py    the interface, the tokenizer of a checkpoint, prompts
detokenizer.py  incremental text of a reply, stop sequences
opening.py      from a folder to a tokenizer
files.py        the files beside tokenizer.json, checked
tokenizer_json.py  tokenizer.json, checked
chat.py         chat messages to text
length.py       texts that are too long, found without encoding them

Texts are encoded in processes of their own, which can be ended:

pool.py         threads and their processes
lanes.py        who is next
process.py      a process, seen from the program
work.py         what crosses the pipe, and its limits
worker.py       the process itself
encoder.py      what it computes
"""
