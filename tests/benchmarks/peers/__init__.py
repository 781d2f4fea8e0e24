"""This engine beside others: the same weights, prompts and threads, taking turns.

    python -m tests.benchmarks.peers --openvino PYTHON --llama-cpp FOLDER --vllm PYTHON

Every engine, this one included, is a child process that serves prompts of token ids and returns the
time of every token (`children/serve.py` has the protocol). A child runs under the Python of its
engine's own environment and imports nothing of this repository's, except this engine's child.

work.py: what is asked of them, and the goals. floors.py: what the machine needs at least.
peer.py: this side of a child. comparison.py: rounds, ratios and verdicts.
"""
