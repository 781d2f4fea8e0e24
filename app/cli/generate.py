"""`inferdeck generate`: generate a reply to one prompt."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from app.cli import values
from app.cli.options import (
    add_engine_options,
    add_json_option,
    add_options,
    add_sampling_options,
    engine_config,
    sampling_params,
)
from app.cli.session import open_engine
from engine.errors import ErrorInfo, InferdeckError, InvalidRequestError
from engine.units import duration_text, rate_text

# What follows needs numpy or torch, which `--help` need not wait for.
if TYPE_CHECKING:
    from engine.messages import DraftRound, OutputEvent, Prompt
    from engine.snapshot import RequestTimes
    from engine.step.output import RequestOutput

NAME = "generate"
HELP = "Generate a reply to one prompt."
DESCRIPTION = "Generate a reply to one prompt and stream it to stdout."
EPILOG = """\
examples:
  inferdeck generate --chat "What is TTFT?"
  inferdeck generate --model DIR --prompt "Once upon a time" --max-tokens 64 --temperature 0
  inferdeck generate --model DIR --prompt-token-ids 1,2,3 --logprobs 5 --json
  cat question.txt | inferdeck generate --chat - --system "Answer in one sentence."
"""


MAX_STDIN_BYTES = 64 * 2**20
UNEXPLAINED = ErrorInfo("The request failed.", "Check the log for the cause.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompt").add_mutually_exclusive_group(required=True)
    add_options(
        group,
        ("--prompt TEXT", values.text, "Prompt text; '-' reads stdin."),
        ("--prompt-token-ids IDS", values.token_ids, "Prompt token ids, such as 1,2,3."),
        ("--chat TEXT", values.text,
         "User message, formatted with the chat template; '-' reads stdin."),
    )  # fmt: skip
    add_options(parser, ("--system TEXT", values.text, "System prompt for --chat."))
    add_json_option(parser)
    add_sampling_options(parser)
    # --seed is a sampling option that seeds both
    add_engine_options(parser, exclude=("seed",))


def run(args: argparse.Namespace) -> int:
    params = sampling_params(args)
    config = engine_config(args)
    prompt = _prompt(args)

    def write(event: OutputEvent) -> None:
        if not args.json:
            print(event.text, end="", flush=True)

    with open_engine(config) as engine:
        (output,) = engine.generate([prompt], params, on_event=write)
    if output.error is not None or output.finish_reason == "error":
        cause, remedy = (output.error or UNEXPLAINED)[:2]
        raise InferdeckError(cause, remedy)
    if args.json:
        print(json.dumps(as_json(output, wants_logprobs=params.logprobs is not None)))
        return 0
    print()
    print(_summary(output), file=sys.stderr)
    return 0


def as_json(output: RequestOutput, *, wants_logprobs: bool) -> dict[str, Any]:
    """The object that `--json` prints. Times in milliseconds."""
    result: dict[str, Any] = {
        "text": output.text,
        "token_ids": list(output.token_ids),
        "logprobs": [entry.logprob for entry in output.logprobs] if wants_logprobs else None,
        "finish_reason": output.finish_reason,
        "num_prompt_tokens": output.num_prompt_tokens,
        "num_cached_tokens": output.num_cached_tokens,
        "metrics": _metrics(output.metrics),
        "speculative": _speculative(output.drafts),
    }
    if wants_logprobs:
        names = ("token_id", "token", "logprob")
        result["top_logprobs"] = [
            [dict(zip(names, one, strict=True)) for one in entry.alternatives]
            for entry in output.logprobs
        ]
    return result


def _speculative(rounds: Sequence[DraftRound]) -> dict[str, Any]:
    """Tokens drafted and accepted, and accepted by position in the draft."""
    longest = max((len(r.token_ids) for r in rounds), default=0)
    return {
        "drafted": sum(len(r.token_ids) for r in rounds),
        "accepted": sum(r.num_accepted for r in rounds),
        "per_position": [sum(r.num_accepted > i for r in rounds) for i in range(longest)],
    }


def _metrics(times: RequestTimes | None) -> dict[str, Any]:
    ttft, itl, e2e = (times.ttft_s, times.itl_s, times.e2e_s) if times else (None, [], None)
    return {
        "ttft_ms": None if ttft is None else round(ttft * 1000, 4),
        "itl_ms": [round(gap * 1000, 4) for gap in itl],
        "e2e_ms": None if e2e is None else round(e2e * 1000, 4),
    }


def _prompt(args: argparse.Namespace) -> Prompt:
    if args.system is not None and args.chat is None:
        raise InvalidRequestError("--system requires --chat.", "Pass the message with --chat.")
    if args.prompt_token_ids is not None:
        return tuple(args.prompt_token_ids)
    given = args.prompt if args.chat is None else args.chat
    text = _read_stdin() if given == "-" else given
    if args.chat is None:
        return str(text)
    messages = [{"role": "user", "content": text}]
    if args.system is not None:
        messages.insert(0, {"role": "system", "content": args.system})
    return tuple(messages)


def _read_stdin() -> str:
    raw = sys.stdin.buffer.read(MAX_STDIN_BYTES + 1)
    if len(raw) > MAX_STDIN_BYTES:
        raise InvalidRequestError(
            f"The prompt on stdin exceeds {MAX_STDIN_BYTES:,} bytes.", "Pass a shorter prompt."
        )
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"The prompt on stdin is not UTF-8 text (byte {error.start:,}).",
            "Pass UTF-8 text.",
        ) from None


def _summary(output: RequestOutput) -> str:
    times = output.metrics
    parts = [f"{output.num_prompt_tokens} prompt tokens"]
    if output.num_cached_tokens:
        parts[0] += f" ({output.num_cached_tokens} cached)"
    parts.append(f"{len(output.token_ids)} generated ({output.finish_reason})")
    if times is not None and times.ttft_s is not None:
        parts.append(f"TTFT {duration_text(times.ttft_s)}")
        if output.drafts:
            figures = _speculative(output.drafts)
            parts.append(f"{figures['accepted']} of {figures['drafted']} draft tokens accepted")
        if pace := times.tpot_s:
            parts.append(f"TPOT {duration_text(pace)} ({rate_text(1 / pace)})")
    return "[" + ", ".join(parts) + "]"
