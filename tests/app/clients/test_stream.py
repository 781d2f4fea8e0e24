"""Replies as they stream: every shape that servers send, and every way to fail."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from app.clients.calls import make_call
from app.clients.chunks import Counting, Piece, ReplyReader
from app.clients.errors import TargetError
from app.clients.stream import Streamer
from app.clients.target import ServerType, parse_address
from engine.sampling_params import SamplingParams
from engine.snapshot import FinishReason
from tests.app.clients.conftest import Exchange, ScriptedServer, chat_chunk, usage
from tests.figures import numbers

CHAT = "/v1/chat/completions"
PROMPT = ({"role": "user", "content": "hi"},)


def streamed(
    server: ScriptedServer, server_type: ServerType = ServerType.OPENAI, **params: Any
) -> tuple[list[Piece], ReplyReader]:
    """The pieces of one chat reply."""
    call = make_call(server_type, "m", PROMPT, SamplingParams(**params))
    reader = ReplyReader()

    async def run() -> list[Piece]:
        streamer = Streamer(server.target, parse_address(server.target.base_url))
        try:
            return [timed.piece async for timed in streamer.stream(call, reader)]
        finally:
            await streamer.close()

    return asyncio.run(run()), reader


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def test_a_plain_reply(server: ScriptedServer) -> None:
    role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    server.answers[CHAT] = lambda exchange: exchange.stream(
        role, chat_chunk("Hel"), chat_chunk("lo"), chat_chunk(finish="stop"),
        {"choices": [], "usage": usage(12, 2, cached=8)}, "[DONE]",
    )  # fmt: skip
    pieces, reader = streamed(server)
    assert text_of(pieces) == "Hello"
    assert reader.finish_reason is FinishReason.STOP
    assert (reader.num_tokens, reader.num_prompt_tokens, reader.num_cached_tokens) == (2, 12, 8)
    assert reader.counting is Counting.PIECES
    assert server.asked[0]["stream_options"] == {"include_usage": True}
    assert server.asked[0]["messages"] == [{"role": "user", "content": "hi"}]


def test_token_ids_are_those_of_the_server(server: ScriptedServer) -> None:
    chunks = [chat_chunk("a"), chat_chunk("bc"), chat_chunk(finish="length")]
    for chunk, ids in zip(chunks, ([5], [6, 7], []), strict=True):
        chunk["choices"][0]["token_ids"] = ids
    server.answers[CHAT] = lambda exchange: exchange.stream(*chunks, "[DONE]")
    pieces, reader = streamed(server, ServerType.VLLM)
    assert [piece.token_ids for piece in pieces] == [(5,), (6, 7), ()]
    assert reader.counting is Counting.IDS
    assert server.asked[0]["return_token_ids"] is True


def test_usage_with_every_piece_counts_tokens(server: ScriptedServer) -> None:
    server.answers[CHAT] = lambda exchange: exchange.stream(
        chat_chunk("", usage=usage(9, 0)), chat_chunk("ab", usage=usage(9, 3)),
        chat_chunk("c", usage=usage(9, 4)), chat_chunk(finish="stop", usage=usage(9, 5)), "[DONE]",
    )  # fmt: skip
    pieces, reader = streamed(server, ServerType.SGLANG)
    assert [len(piece.token_ids) for piece in pieces] == [0, 3, 1, 1]
    assert (reader.counting, reader.num_tokens) == (Counting.USAGE, 5)


def test_tokens_that_only_the_usage_knows_come_at_the_end(server: ScriptedServer) -> None:
    server.answers[CHAT] = lambda exchange: exchange.stream(
        chat_chunk("many tokens"), chat_chunk("at once"), chat_chunk(finish="stop"),
        {"choices": [], "usage": usage(4, 9)}, "[DONE]",
    )  # fmt: skip
    pieces, reader = streamed(server)
    assert sum(len(piece.token_ids) for piece in pieces) == reader.num_tokens == 9
    assert sum(piece.num_late for piece in pieces) == 7


def test_usage_beside_the_finish(server: ScriptedServer) -> None:
    """As TGI sends it."""
    server.answers[CHAT] = lambda exchange: exchange.stream(
        chat_chunk("a", usage=None), chat_chunk("b", "stop", usage=usage(3, 2)), "[DONE]"
    )
    pieces, reader = streamed(server, ServerType.TGI)
    assert [len(piece.token_ids) for piece in pieces] == [1, 1]
    assert not any(piece.num_late for piece in pieces)
    assert reader.num_prompt_tokens == 3


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_stands_between_the_marks(server: ScriptedServer, key: str) -> None:
    def thought(text: str) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": {key: text, "content": None}}]}

    server.answers[CHAT] = lambda exchange: exchange.stream(
        thought("let me "), thought("see"), chat_chunk("42"), chat_chunk(finish="stop"), "[DONE]"
    )
    pieces, _ = streamed(server)
    assert text_of(pieces) == "<think>\nlet me see\n</think>\n\n42"


def test_reasoning_alone_is_closed(server: ScriptedServer) -> None:
    only = {"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]}
    server.answers[CHAT] = lambda exchange: exchange.stream(only, chat_chunk(finish="length"))
    pieces, reader = streamed(server)
    assert text_of(pieces).rstrip().endswith("</think>")
    assert reader.finish_reason is FinishReason.LENGTH


def test_log_probabilities(server: ScriptedServer) -> None:
    chunk = chat_chunk("Hi")
    tops = [{"token": "Yo", "logprob": -0.2}, {"token": "Hi", "logprob": -1.5}]
    chunk["choices"][0]["logprobs"] = {
        "content": [{"token": "Hi", "logprob": -1.5, "top_logprobs": tops}]
    }
    server.answers[CHAT] = lambda exchange: exchange.stream(chunk, chat_chunk(finish="stop"))
    pieces, reader = streamed(server, logprobs=2)
    (entry,) = pieces[0].logprobs
    assert (entry.token, entry.logprob, entry.rank) == ("Hi", -1.5, 2)
    assert [(text, value) for _, text, value in entry.alternatives] == [("Yo", -0.2)]
    assert pieces[0].token_ids == (entry.token_id,)
    assert entry.token_id < 0  # which it is there is not told
    assert entry.alternatives[0][0] != entry.token_id
    assert reader.counting is Counting.LOGPROBS


def test_completions_have_another_shape() -> None:
    reader = ReplyReader()
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [-0.1, None],
                "top_logprobs": [{"a": -0.1, "c": -3.0}, None]}  # fmt: skip
    piece = reader.read({"choices": [{"text": "ab", "logprobs": logprobs, "finish_reason": None}]})
    assert piece.text == "ab"
    assert [entry.token for entry in piece.logprobs] == ["a", "b"]
    assert len(piece.token_ids) == 2


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ("stop", FinishReason.STOP), ("length", FinishReason.LENGTH), ("abort", FinishReason.ABORT),
        ("eos_token", FinishReason.STOP), ("stop_sequence", FinishReason.STOP),
        ("content_filter", FinishReason.STOP), ("tool_calls", FinishReason.STOP),
        ("error", FinishReason.ERROR),
    ],
)  # fmt: skip
def test_finish_reasons(sent: str, meant: FinishReason) -> None:
    assert ReplyReader().read(chat_chunk("x", sent)).finish_reason is meant


def test_pieces_may_be_cut_anywhere(server: ScriptedServer) -> None:
    raw = b": hello\r\n\r\n" + b"".join(
        b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\r\n\r\n"
        for chunk in (chat_chunk("grüße"), chat_chunk(" 日本"), chat_chunk(finish="stop"))
    )

    def drip(exchange: Exchange) -> None:
        exchange.begin()
        for start in range(0, len(raw), 7):
            exchange.write(raw[start : start + 7])
        exchange.write(b": ping\r\n\r\ndata: [DONE]\r\n\r\n")

    server.answers[CHAT] = drip
    pieces, reader = streamed(server)
    assert text_of(pieces) == "grüße 日本"
    assert reader.finish_reason is FinishReason.STOP


# -- failures ---------------------------------------------------------------------------------


def test_an_error_in_the_stream(server: ScriptedServer) -> None:
    server.answers[CHAT] = lambda exchange: exchange.stream(
        chat_chunk("so far"), {"error": {"message": "CUDA out of memory", "code": 500}}, "[DONE]"
    )
    with pytest.raises(TargetError, match="CUDA out of memory"):
        streamed(server)


@pytest.mark.parametrize("last", [b"", b"data: [DONE]\n\n", b'data: {"choi'])
def test_a_server_that_stops_in_the_middle(server: ScriptedServer, last: bytes) -> None:
    def stop(exchange: Exchange) -> None:
        exchange.stream(chat_chunk("one"), chat_chunk(" two"))
        exchange.write(last)

    server.answers[CHAT] = stop
    with pytest.raises(TargetError) as failed:
        streamed(server)
    cause = failed.value.cause
    assert '{"choi' in cause if b"choi" in last else numbers(cause)[-1] == 2


def test_nothing_but_a_finish_is_a_reply(server: ScriptedServer) -> None:
    server.answers[CHAT] = lambda exchange: exchange.stream(chat_chunk(finish="stop"))
    pieces, reader = streamed(server)
    assert text_of(pieces) == ""
    assert reader.num_tokens == 0


def test_a_stream_without_a_token(server: ScriptedServer) -> None:
    server.answers[CHAT] = lambda exchange: exchange.stream("[DONE]")
    with pytest.raises(TargetError, match="first token"):
        streamed(server)


@pytest.mark.parametrize(
    ("status", "value", "said"),
    [
        (400, {"error": {"message": "max_tokens is too large"}}, "400.*max_tokens is too"),
        (400, {"object": "error", "message": "flat"}, "400.*flat"),
        (422, {"error": "`top_p` must be < 1.0", "error_type": "validation"}, "top_p"),
        (401, {}, "API key"),
        (503, {"error": {"message": "No model is loaded"}}, "503.*No model"),
        (200, {"choices": []}, "200"),
    ],
)
def test_refusals_have_the_servers_words(
    server: ScriptedServer, status: int, value: Any, said: str
) -> None:
    server.answers[CHAT] = lambda exchange: exchange.send(status, value)
    with pytest.raises(TargetError, match=said):
        streamed(server)


@pytest.mark.parametrize("event", ["[1]", "null", "hello", '{"choices": [5]}'])
def test_nonsense_in_the_stream(server: ScriptedServer, event: str) -> None:
    server.answers[CHAT] = lambda exchange: exchange.stream(event)
    with pytest.raises(TargetError):
        streamed(server)
