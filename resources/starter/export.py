"""Write a trained model as an ordinary Hugging Face folder that is complete at every moment."""

from __future__ import annotations

import copy
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3ForCausalLM


def export_model(
    folder: Path,
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    report: dict[str, Any],
) -> None:
    """Write weights (bfloat16), configuration, tokenizer and `training.json` into `folder`.

    All files are written beside the folder first and then renamed into it one by one, so that a
    reader never meets half a file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".export-") as name:
        staging = Path(name)
        exported = copy.deepcopy(model).bfloat16().cpu()
        exported.generation_config = GenerationConfig(
            do_sample=True,
            temperature=0.7,
            top_p=0.9,
            eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id],
            pad_token_id=tokenizer.pad_token_id,
        )
        exported.save_pretrained(staging)
        _save_tokenizer(tokenizer, staging)
        (staging / "training.json").write_text(json.dumps(report, indent=2) + "\n")
        for file in sorted(staging.iterdir()):
            file.chmod(0o644)
            os.replace(file, folder / file.name)


def _save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    for key in ("is_local", "local_files_only"):  # how it was loaded, not what it is
        config.pop(key, None)
    # The class name that every version of transformers knows, and the template where servers
    # that do not read chat_template.jinja look for it.
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config["chat_template"] = tokenizer.chat_template
    path.write_text(json.dumps(config, indent=2) + "\n")
