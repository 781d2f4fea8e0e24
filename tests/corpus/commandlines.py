"""Every option with every wrong value, and options that exclude each other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.corpus.case import Case, Expected
from tests.corpus.commands import SMALL, command, generate

NUMBERS = {"empty": "", "text": "x", "nan": "nan", "infinity": "inf", "-1": "-1",
           "fraction": "0.5.5", "hexadecimal": "0x10", "10**30": "1" + "0" * 30,
           "exponent": "1e999", "digits": "9" * 5000}  # fmt: skip
TEXTS = {"empty": "", "unknown": "nope", "zero_byte_escape": "\\0", "long": "x" * 10_000,
         "surrogate": "\udcff", "number": "5"}  # fmt: skip
CHOICES = ("--device", "--dtype", "--load-format", "--quantization", "--quantization-head",
           "--batching", "--speculative-method", "--kv-cache-dtype", "--kv-allocation")  # fmt: skip
ENGINE = ("--gpu-layers", "--quantization-group-size", "--max-model-len", "--num-threads",
          "--max-num-seqs", "--max-num-batched-tokens", "--watermark", "--num-speculative-tokens",
          "--prompt-lookup-min", "--prompt-lookup-max", "--block-size", "--kv-cache-memory-bytes",
          "--gpu-memory-utilization")  # fmt: skip
SAMPLING = ("--temperature", "--top-p", "--top-k", "--min-p", "--repetition-penalty",
            "--presence-penalty", "--frequency-penalty", "--max-tokens", "--logprobs",
            "--stop-token-ids", "--min-tokens", "--logit-bias", "--seed")  # fmt: skip
SERVE = ("--port", "--shutdown-timeout", "--max-queued-requests", "--max-connections",
         "--max-body-bytes", "--max-output-tokens")  # fmt: skip
BENCH = ("--concurrency", "--request-rate", "--num-warmups", "--rounds", "--input-len",
         "--output-len", "--num-requests")  # fmt: skip
QUANTIZE = ("--bits", "--group-size", "--num-sequences", "--sequence-length", "--seed")
EVALUATE = ("--context-length", "--stride", "--worst")
HARMLESS = {
    "--top-k=-1", "--stop-token-ids=empty", "--repetition-penalty=infinity", "--seed=-1",
    "--seed=10**30", "--max-num-seqs=10**30", "--max-num-batched-tokens=10**30",
    "--top-k=10**30", "--num-threads=10**30",
    "--top-k=digits", "--prompt-lookup-max=10**30", "--num-speculative-tokens=10**30",
    "--max-tokens=10**30",  # the context is the limit then
}  # fmt: skip
"""Values that an option may have; the tokens of the control are then right."""
UNLIMITED = ("--max-queued-requests", "--max-connections", "--max-body-bytes",
             "--max-output-tokens", "--concurrency", "--request-rate", "--num-warmups", "--rounds",
             "--worst")  # fmt: skip
"""Any number is right, and with a large one the command does not end."""
SIGNED = ("--presence-penalty", "--frequency-penalty", "--seed")

LINES: dict[str, tuple[str, ...]] = {
    "no_prompt": ("generate",),
    "two_prompts": ("generate", "--prompt", "a", "--chat", "b"),
    "unknown_command": ("nope",),
    "unknown_option": ("generate", "--prompt", "a", "--nope"),
    "abbreviated": ("generate", "--prom", "a"),
    "value_missing": ("generate", "--prompt"),
    "system_alone": ("generate", "--prompt", "a", "--system", "b"),
    "ids_text": ("generate", "--prompt-token-ids", "a,b"),
    "ids_negative": ("generate", "--prompt-token-ids=-1"),
    "ids_empty": ("generate", "--prompt-token-ids", ""),
    "ids_fraction": ("generate", "--prompt-token-ids", "1.5"),
    "ids_large": ("generate", "--prompt-token-ids", "99999999"),
    "ids_huge": ("generate", "--prompt-token-ids", "9" * 4000),
    "ids_many": ("generate", "--prompt-token-ids", "1," * 60_000),
    "prompt_long": ("generate", "--prompt", "a " * 60_000),
    "min_above_max": ("generate", "--prompt", "t1", "--min-tokens", "9", "--max-tokens", "2"),
    "lookup_min_above_max": ("generate", "--prompt", "t1", "--speculative-method", "ngram",
                             "--prompt-lookup-min", "9", "--prompt-lookup-max", "2"),
    "gpu_layers_on_cpu": ("generate", "--prompt", "t1", "--gpu-layers", "5"),
    "cuda_without": ("generate", "--prompt", "t1", "--device", "cuda:0"),
    "int8_group_size": ("generate", "--prompt", "t1", "--quantization", "int8",
                        "--quantization-group-size", "32"),
    "awq_on_plain": ("generate", "--prompt", "t1", "--quantization", "awq"),
    "draft_missing": ("generate", "--prompt", "t1", "--speculative-method", "draft_model"),
    "draft_nothing": ("generate", "--prompt", "t1", "--speculative-method", "draft_model",
                      "--speculative-model", "/nonexistent"),
    "context_too_long": ("generate", "--prompt", "t1", "--max-model-len", "100000"),
    "cache_too_small": ("generate", "--prompt", "t1", "--kv-cache-memory-bytes", "1"),
    "cache_unit": ("generate", "--prompt", "t1", "--kv-cache-memory-bytes", "5XB"),
    "cache_huge": ("generate", "--prompt", "t1", "--kv-cache-memory-bytes", "9000TiB"),
    "kv_half": ("generate", "--prompt", "t1", "--kv-cache-dtype", "k=int8"),
    "kv_unknown": ("generate", "--prompt", "t1", "--kv-cache-dtype", "k=int8,v=nope"),
    "bias_text": ("generate", "--prompt", "t1", "--logit-bias", "5"),
    "bias_token": ("generate", "--prompt", "t1", "--logit-bias", "9999=1"),
    "bias_nan": ("generate", "--prompt", "t1", "--logit-bias", "5=nan"),
    "stop_ids_large": ("generate", "--prompt", "t1", "--stop-token-ids", "99999999999"),
    "stop_empty": ("generate", "--prompt", "t1", "--stop", ""),
    "serve_name_empty": ("serve", "--port", "0", "--served-model-name", ""),
    "serve_name_blank": ("serve", "--port", "0", "--served-model-name", " "),
    "serve_host": ("serve", "--port", "0", "--host", "no such host"),
    "serve_host_empty": ("serve", "--port", "0", "--host", ""),
    "serve_open": ("serve", "--port", "0", "--host", "0.0.0.0"),
    "serve_port_large": ("serve", "--port", "65536"),
    "serve_key_empty": ("serve", "--port", "0", "--api-key", ""),
    "serve_origin": ("serve", "--port", "0", "--cors-origin", "nope"),
    "serve_folder": ("serve", "--port", "0", "--model-dir", "/nonexistent"),
    "serve_body": ("serve", "--port", "0", "--max-body-bytes", "lots"),
    "bench_nothing": ("bench",),
    "bench_workload": ("bench", "--workload", "nope"),
    "bench_variant": ("bench", "--workload", "voice-bot", "--variant", "nope"),
    "bench_both": ("bench", "--workload", "voice-bot", "--concurrency", "2", "--request-rate", "1"),
    "bench_url": ("bench", "--base-url", "ftp://x", "--workload", "voice-bot"),
    "bench_url_closed": ("bench", "--base-url", "http://127.0.0.1:1", "--workload", "voice-bot"),
    "bench_compare": ("bench", "--workload", "voice-bot", "--compare", "nope=1,2"),
    "bench_compare_value": ("bench", "--workload", "voice-bot", "--compare", "max_num_seqs=x"),
    "bench_output": ("bench", "--workload", "voice-bot", "--output-json", "/nonexistent/x.json"),
    "bench_output_folder": ("bench", "--workload", "voice-bot", "--output-json", "/tmp"),
    "quantize_nothing": ("quantize",),
    "quantize_method": ("quantize", "--method", "nope", "--output", "out"),
    "quantize_output_taken": ("quantize", "--method", "rtn", "--output", "/tmp"),
    "quantize_output_device": ("quantize", "--method", "rtn", "--output", "/dev/null"),
    "quantize_exclude": ("quantize", "--method", "rtn", "--output", "out", "--exclude", "nope"),
    "quantize_calibration": ("quantize", "--method", "awq", "--output", "out", "--calibration",
                             "/nonexistent"),
    "quantize_calibration_device": ("quantize", "--method", "awq", "--output", "out",
                                    "--calibration", "/dev/zero"),
    "quantize_act_order": ("quantize", "--method", "rtn", "--output", "out", "--desc-act"),
    "evaluate_nothing": ("evaluate",),
    "evaluate_text": ("evaluate", "--text", "nope"),
    "evaluate_file": ("evaluate", "--text-file", "/nonexistent"),
    "evaluate_device": ("evaluate", "--text-file", "/dev/zero"),
    "evaluate_folder": ("evaluate", "--text-file", "/tmp"),
    "evaluate_empty": ("evaluate", "--text-file", "/dev/null"),
    "evaluate_prompts": ("evaluate", "--prompts", "/nonexistent"),
    "evaluate_reference": ("evaluate", "--text", "english", "--reference", "/nonexistent"),
    "docs_unknown": ("docs", "nope"),
    "screenshot_size": ("screenshot", "--output", "out", "--size", "1x1"),
    "screenshot_size_text": ("screenshot", "--output", "out", "--size", "big"),
    "model_empty": ("generate", "--prompt", "a", "--model", ""),
    "model_nothing": ("generate", "--prompt", "a", "--model", "/nonexistent"),
    "model_file": ("generate", "--prompt", "a", "--model", "/etc/passwd"),
    "model_device": ("generate", "--prompt", "a", "--model", "/dev/zero"),
    "model_long": ("generate", "--prompt", "a", "--model", "x" * 5000),
    "model_surrogate": ("generate", "--prompt", "a", "--model", "\udcff"),
    "model_home": ("generate", "--prompt", "a", "--model", "~nobody_here/x"),
}  # fmt: skip
"""All refused. `--model` is the control where none is given."""
NAMED = {"serve_name_empty": "--served-model-name", "gpu_layers_on_cpu": "gpu_layers",
         "lookup_min_above_max": "prompt_lookup_min",
         "int8_group_size": "quantization_group_size"}  # fmt: skip


def cases() -> Iterator[Case]:
    yield Case("command", "unchanged", generate, control="llama", expected="same")
    for name, value in TEXTS.items():
        for flag in CHOICES:
            yield _option(flag, name, value)
    for flags, words in (
        ((*ENGINE, *SAMPLING), ("generate", "--prompt-token-ids", "1,2,3")),
        (SERVE, ("serve", "--port", "0", "--json")),
        (BENCH, ("bench", "--input-len", "4", "--output-len", "2", "--num-requests", "1")),
        (QUANTIZE, ("quantize", "--method", "rtn", "--output", "out")),
        (EVALUATE, ("evaluate", "--text", "english")),
    ):
        for flag in flags:
            for name, value in NUMBERS.items():
                is_right = flag in UNLIMITED if name == "10**30" else flag in SIGNED
                if not (is_right and name in ("10**30", "-1")):
                    yield _option(flag, name, value, words)
    for key, words in LINES.items():
        names = (NAMED[key],) if key in NAMED else ()
        yield Case("command", f"line/{key}", partial(_line, words), control="llama", names=names)


def _option(
    flag: str, name: str, value: str, words: tuple[str, ...] = ("generate", "--prompt-token-ids",
                                                                "1,2,3"),
) -> Case:  # fmt: skip
    key = f"{flag}={name}"
    plain: Expected = "refused"
    names = (flag.removeprefix("--").replace("-", "_"),)
    if key in HARMLESS:
        plain, names = "sound", ()
    run = partial(_line, (*words, f"{flag}={value}"))
    return Case("command", f"{words[0]}/{key}", run, control="llama", expected=plain, names=names)


def _line(words: tuple[str, ...], folder: Path) -> int:
    """Values of the line's own override those of the control's command."""
    import os

    os.chdir(folder)
    first, *rest = words
    given = " ".join(rest)
    own: list[str] = []
    if first in ("generate", "serve", "bench", "quantize", "evaluate") and "--model" not in rest:
        own += ["--model", str(folder)]
    if first in ("generate", "serve", "bench", "evaluate"):
        pairs = zip(SMALL[::2], SMALL[1::2], strict=True)
        own += [word for pair in pairs if pair[0] not in given for word in pair]
    if first == "generate":
        for flag, value in (("--max-tokens", "2"), ("--temperature", "0")):
            own += [flag, value] if flag not in given else []
        own.append("--json")
    return command(first, *own, *rest)
