"""Every sampling parameter is sent, or named as one that is not."""

from __future__ import annotations

import dataclasses

import pytest

from app.clients.calls import TAKES_IDS, make_call, remark, sampling_fields
from app.clients.errors import TargetError
from app.clients.target import ServerType
from app.server.bodies import ChatBody, CompletionBody
from engine.sampling_params import SamplingParams

EVERYTHING = SamplingParams(
    temperature=0.7, top_k=40, top_p=0.9, min_p=0.05, repetition_penalty=1.1, presence_penalty=0.5,
    frequency_penalty=0.25, logit_bias={5: -100.0}, seed=7, logprobs=3, max_tokens=50, min_tokens=2,
    stop=("x",), stop_token_ids=(9,), ignore_eos=True, include_stop_str_in_output=True,
)  # fmt: skip
NOT_TAKEN = {
    ServerType.INFERDECK: set(),
    ServerType.VLLM: set(),
    ServerType.ROUTER: set(),
    ServerType.SGLANG: set(),
    ServerType.TENSORRT_LLM: set(),
    ServerType.LLAMA_CPP: {"min_tokens", "stop_token_ids", "include_stop_str_in_output"},
    ServerType.OPENAI: {"top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids",
                     "ignore_eos", "include_stop_str_in_output"},
    ServerType.TGI: {"top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids",
                  "ignore_eos", "include_stop_str_in_output", "logit_bias", "presence_penalty"},
}  # fmt: skip
CHAT_PROMPT = ({"role": "user", "content": "hi"},)


@pytest.mark.parametrize("server_type", ServerType)
def test_what_cannot_be_sent_is_named(server_type: ServerType) -> None:
    fields = sampling_fields(EVERYTHING, server_type, is_chat=True)
    assert set(fields.not_taken) == NOT_TAKEN[server_type]
    words = remark(server_type, fields.not_taken)
    assert all(name in words for name in NOT_TAKEN[server_type])
    assert words.startswith(str(server_type)) if NOT_TAKEN[server_type] else words == ""


@pytest.mark.parametrize("server_type", ServerType)
@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(SamplingParams)])
def test_no_parameter_is_dropped_in_silence(server_type: ServerType, name: str) -> None:
    """Changed alone, each changes what is sent, or is named."""
    plain = SamplingParams(temperature=1.0)
    changed = dataclasses.replace(plain, **{name: getattr(EVERYTHING, name)})
    before = sampling_fields(plain, server_type, is_chat=True)
    after = sampling_fields(changed, server_type, is_chat=True)
    assert before.not_taken == ()
    assert after.body != before.body or after.not_taken == (name,)


@pytest.mark.parametrize("server_type", [ServerType.VLLM, ServerType.SGLANG, ServerType.LLAMA_CPP])
def test_defaults_of_the_server_do_not_show_through(server_type: ServerType) -> None:
    body = sampling_fields(SamplingParams(), server_type, is_chat=True).body
    assert body["top_k"] == (0 if server_type is ServerType.LLAMA_CPP else -1)
    assert (body["top_p"], body["min_p"], body["temperature"]) == (1.0, 0.0, 1.0)
    assert body.get("repetition_penalty", body.get("repeat_penalty")) == 1.0
    assert "max_tokens" not in body and "stop" not in body


def test_names_of_others() -> None:
    llama = sampling_fields(EVERYTHING, ServerType.LLAMA_CPP, is_chat=True).body
    assert (llama["repeat_penalty"], llama["repeat_last_n"]) == (1.1, -1)
    assert "repetition_penalty" not in llama
    sglang = sampling_fields(EVERYTHING, ServerType.SGLANG, is_chat=True).body
    assert sglang["no_stop_trim"] is True


def test_logprobs_are_asked_for_as_the_route_has_it() -> None:
    chat = sampling_fields(EVERYTHING, ServerType.OPENAI, is_chat=True).body
    assert (chat["logprobs"], chat["top_logprobs"]) == (True, 3)
    none = dataclasses.replace(EVERYTHING, logprobs=0)
    assert "top_logprobs" not in sampling_fields(none, ServerType.OPENAI, is_chat=True).body
    assert sampling_fields(EVERYTHING, ServerType.VLLM, is_chat=False).body["logprobs"] == 3


@pytest.mark.parametrize("prompt", [CHAT_PROMPT, "text", (1, 2, 3)])
def test_our_own_server_knows_every_field(prompt: object) -> None:
    call = make_call(ServerType.INFERDECK, "m", prompt, EVERYTHING, 100)  # type: ignore[arg-type]
    body = ChatBody if call.is_chat else CompletionBody
    assert body.unknown(call.body) == []
    body.read(call.body)


def test_token_ids_go_to_those_who_take_them() -> None:
    for server_type in ServerType:
        if server_type in TAKES_IDS:
            call = make_call(server_type, "m", (1, 2, 3), SamplingParams())
            assert (call.path, call.body["prompt"]) == ("completions", [1, 2, 3])
        else:
            with pytest.raises(TargetError, match="token ids"):
                make_call(server_type, "m", (1, 2, 3), SamplingParams())


def test_completions_have_a_limit_of_their_own() -> None:
    """Servers write 16 tokens where none is given."""
    known = make_call(ServerType.VLLM, "m", (1, 2, 3), SamplingParams(), 100)
    assert known.body["max_tokens"] == 97
    assert make_call(ServerType.VLLM, "m", "text", SamplingParams()).body["max_tokens"] > 16
    assert "max_tokens" not in make_call(ServerType.VLLM, "m", CHAT_PROMPT, SamplingParams()).body
