"""Short Python programs in fenced blocks, with the questions that they answer."""

from __future__ import annotations

from random import Random

# (what is asked for, the program, one sentence about it)
PROGRAMS = (
    (
        "computes the KV cache size",
        "def kv_cache_bytes(layers, kv_heads, head_size, tokens, bytes_per_value=2):\n"
        "    per_token = 2 * layers * kv_heads * head_size * bytes_per_value\n"
        "    return per_token * tokens\n",
        "The factor 2 stands for keys and values.",
    ),
    (
        "computes the size of the weights",
        "def weight_bytes(parameters, bits):\n    return parameters * bits // 8\n",
        "A byte has 8 bits.",
    ),
    (
        "counts the blocks of a sequence",
        "def num_blocks(tokens, block_size=16):\n"
        "    return (tokens + block_size - 1) // block_size\n",
        "The last block may be partly empty, so the division rounds up.",
    ),
    (
        "computes the TPOT",
        "def tpot(e2e, ttft, n):\n    return (e2e - ttft) / (n - 1)\n",
        "The first token belongs to the TTFT and does not count.",
    ),
    (
        "adds two numbers",
        "def add(a, b):\n    return a + b\n",
        "It returns the sum of both.",
    ),
    (
        "prints hello world",
        'print("Hello, world!")\n',
        "It writes one line.",
    ),
    (
        "counts from 1 to 10",
        "for number in range(1, 11):\n    print(number)\n",
        "The end of a range is not included, so it says 11.",
    ),
    (
        "computes a factorial",
        "def factorial(n):\n    result = 1\n    for i in range(2, n + 1):\n"
        "        result *= i\n    return result\n",
        "The loop multiplies all numbers up to n.",
    ),
    (
        "makes the Fibonacci numbers",
        "def fibonacci(count):\n    a, b = 0, 1\n    numbers = []\n    for _ in range(count):\n"
        "        numbers.append(a)\n        a, b = b, a + b\n    return numbers\n",
        "Each number is the sum of the two before it.",
    ),
    (
        "reverses a string",
        "def reverse(text):\n    return text[::-1]\n",
        "The step -1 walks backwards.",
    ),
    (
        "finds the largest number in a list",
        "def largest(numbers):\n    return max(numbers)\n",
        "The list must not be empty.",
    ),
    (
        "computes the mean of a list",
        "def mean(numbers):\n    return sum(numbers) / len(numbers)\n",
        "The list must not be empty.",
    ),
    (
        "applies temperature to logits",
        "import math\n\n\ndef softmax(logits, temperature=1.0):\n"
        "    scaled = [x / temperature for x in logits]\n"
        "    top = max(scaled)\n"
        "    weights = [math.exp(x - top) for x in scaled]\n"
        "    total = sum(weights)\n"
        "    return [w / total for w in weights]\n",
        "A low temperature makes the largest logit win more often.",
    ),
    (
        "checks whether a number is even",
        "def is_even(n):\n    return n % 2 == 0\n",
        "The remainder of an even number is zero.",
    ),
    (
        "counts the words in a text",
        "def count_words(text):\n    return len(text.split())\n",
        "The text is split at white space.",
    ),
    (
        "samples with top-k",
        "import random\n\n\ndef top_k(probabilities, k):\n"
        "    order = sorted(range(len(probabilities)), key=lambda i: -probabilities[i])\n"
        "    kept = order[:k]\n"
        "    weights = [probabilities[i] for i in kept]\n"
        "    return random.choices(kept, weights)[0]\n",
        "Only the k most likely tokens can be chosen.",
    ),
)

# fmt: off
REQUESTS = (
    "Write a Python function that {task}.", "Write code that {task}.",
    "Show me a program that {task}.", "Give me Python code that {task}.",
    "Write a Python program that {task}.", "Can you write code that {task}?",
    "Write a function that {task}.", "Show me Python code that {task}.",
)
# fmt: on


def code_turns(rng: Random) -> list[tuple[str, str]]:
    """One to two requests for a program; the answer is a fenced block and one sentence."""
    turns = []
    for task, program, remark in rng.sample(PROGRAMS, rng.choice((1, 1, 1, 2))):
        lead = rng.choice(("Here is the code:", "Here is a short program:"))
        request = rng.choice(REQUESTS).format(task=task)
        turns.append((request, f"{lead}\n\n```python\n{program}```\n\n{remark}"))
    return turns
