"""One class: built, saved, opened by the engine and compared with transformers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file

from tests.architectures.sizes import LONGEST, VOCAB_SIZE
from tests.architectures.small import (
    all_logits,
    class_of,
    default_config,
    random_model,
    small_config,
)
from tests.engine.tiny_models import save_tokenizer

LENGTHS = (3, 5, 13, 16, 17, 33, 64, 129)
NEW_TOKENS = 4
TOLERANCE = 1e-3
"""Of log probabilities in float32."""

EQUAL, REFUSED, WRONG = "equal", "refused", "wrong"
CRASHED, TIMEOUT, NOT_BUILT = "crashed", "timeout", "not built"
SUPPORTED = (EQUAL, REFUSED)


class Outcome(NamedTuple):
    """How a class ended. detail: the engine's sentence, or what went wrong. difference: the largest
    of log probabilities, where they were compared. cached: prompt tokens of the second turn that
    were in the prefix cache."""

    model_type: str
    class_name: str
    outcome: str
    detail: str = ""
    difference: float | None = None
    cached: int = 0


def outcome_of(model_type: str, class_name: str) -> Outcome:
    """Runs everything in this process: see `sweep` for limits."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        config = small_config(model_type)
        with torch.no_grad():
            model = _model(config, class_name)
        class_name = type(model).__name__
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            save_tokenizer(Path(folder), VOCAB_SIZE)
            if model.config.model_type != config.model_type:
                _put_inside(config, Path(folder))
            return _compare(model_type, class_name, model, Path(folder))
    except Exception as error:  # whatever a class raises before the engine has a folder
        if reason := _refused_by_config(model_type):
            return Outcome(model_type, class_name, REFUSED, reason)
        return Outcome(model_type, class_name, NOT_BUILT, _line(error))


def _model(config: Any, class_name: str) -> Any:
    """Of a multimodal class whose towers need other packages, the language model alone."""
    try:
        return random_model(class_of(config, class_name), config)
    except ImportError:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

        text = config.get_text_config(decoder=True)
        if text is config:
            raise
        return random_model(MODEL_FOR_CAUSAL_LM_MAPPING[type(text)], text)


def _put_inside(config: Any, folder: Path) -> None:
    """Make a language model's folder that of the multimodal `config`, as such are published."""
    file = folder / "model.safetensors"
    tensors = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in load_file(file).items()
    }
    save_file(tensors, file, {"format": "pt"})
    config.save_pretrained(folder)


def _refused_by_config(model_type: str) -> str:
    """The engine's sentence, if the class's default config is enough for one."""
    from engine.errors import InferdeckError
    from engine.models.architecture import resolve_class
    from engine.models.checkpoint import Checkpoint

    with tempfile.TemporaryDirectory() as folder:
        try:
            default_config(model_type).save_pretrained(folder)
            resolve_class(Checkpoint.open(folder, dummy=True))
        except InferdeckError as error:
            return _cause(error, Path(folder))
        except Exception:
            return ""
    return ""


def _cause(error: Any, folder: Path) -> str:
    """Why a model is refused, wherever it is."""
    cause: str = error.cause.removeprefix(f"{folder / 'config.json'}: ")
    return cause.replace(str(folder), "the model folder")


def _compare(model_type: str, class_name: str, model: Any, folder: Path) -> Outcome:
    from engine import EngineConfig, LLMEngine
    from engine.errors import InferdeckError

    config = EngineConfig(
        model=str(folder), device="cpu", dtype="float32", max_model_len=LONGEST, block_size=8,
        max_num_batched_tokens=24, max_num_seqs=5, kv_cache_memory_bytes=2**26, num_threads=1,
    )  # fmt: skip
    try:
        engine = LLMEngine(config)
        try:
            difference, cached = _difference(engine, model)
        finally:
            engine.shutdown()
    except InferdeckError as error:
        return Outcome(model_type, class_name, REFUSED, _cause(error, folder))
    except Exception as error:
        return Outcome(model_type, class_name, CRASHED, _line(error))
    outcome = EQUAL if difference < TOLERANCE else WRONG
    return Outcome(model_type, class_name, outcome, "", difference, cached)


def _difference(engine: Any, model: Any) -> tuple[float, int]:
    """The largest difference of log probabilities in two turns, and cached tokens of the second."""
    from engine import SamplingParams

    greedy = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=0)
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(5, VOCAB_SIZE, (n,), generator=generator).tolist() for n in LENGTHS]
    worst, cached = 0.0, 0
    for _ in range(2):
        outputs = engine.generate(prompts, greedy)
        for prompt, output in zip(prompts, outputs, strict=True):
            found = torch.tensor([one.logprob for one in output.logprobs])
            wanted = _logprobs(model, prompt, list(output.token_ids))
            difference = float((found - wanted).abs().max())
            worst = max(worst, difference if difference == difference else float("inf"))
        cached = sum(output.num_cached_tokens for output in outputs)
        prompts = [
            [*prompt, *output.token_ids, 7, 11, 6]
            for prompt, output in zip(prompts, outputs, strict=True)
        ]
    return worst, cached


@torch.inference_mode()
def _logprobs(model: Any, prompt: list[int], reply: list[int]) -> torch.Tensor:
    """Of a reply's tokens, in one pass over prompt and reply without a cache."""
    rows = all_logits(model, prompt + reply)[len(prompt) - 1 : -1].log_softmax(-1)
    return rows.gather(1, torch.tensor(reply).unsqueeze(1)).squeeze(1)


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]
