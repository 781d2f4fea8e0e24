"""CONVERTER MODEL OUTPUT: llama.cpp's own converter, for a checkpoint with any tokenizer.

It knows tokenizers by a checksum and refuses others. Which one it is says how text is split, and
the prompts here are token ids.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    converter, model, output = sys.argv[1:]
    folder = Path(converter).resolve().parent
    sys.path[:0] = [str(folder), str(folder / "gguf-py")]
    module = __import__(Path(converter).stem)
    classes = {
        found
        for name, holder in list(sys.modules.items())
        if holder is module or name.partition(".")[0] == "conversion"
        for found in vars(holder).values()
        if isinstance(found, type) and "get_vocab_base_pre" in vars(found)
    }
    for each in classes:
        each.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
        each._set_vocab_sentencepiece = each._set_vocab_gpt2  # tried first; needs sentencepiece
    sys.argv = [converter, model, "--outfile", output, "--outtype", "bf16"]
    module.main()


if __name__ == "__main__":
    main()
