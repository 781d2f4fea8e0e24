"""Whatever is wrong with a request: a 4xx that names it, never a traceback or a hang."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from app.server.bodies import ChatBody, CompletionBody
from engine.sampling_params import SamplingParams
from tests.app.server.conftest import Served

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER: Any = [{"role": "user", "content": "Hello"}]


class Answer(NamedTuple):
    status: int
    headers: Any
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        return dict(json.loads(self.body)["error"])


def call(served: Served, path: str, body: Any = None, **headers: str) -> Answer:
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    headers = {
        "Content-Type": "application/json",
        **{k.replace("_", "-"): v for k, v in headers.items()},
    }
    request = urllib.request.Request(served.url + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return Answer(response.status, response.headers, response.read())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.headers, error.read())


COMPLETION_FAULTS = [
    ({}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, None),
    ({"prompt": ""}, None),
    ({"prompt": 5}, "prompt"),
    ({"prompt": {"a": 1}}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [1, 2.5]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [-1]}, None),
    ({"prompt": [10**9]}, None),
    ({"prompt": [10**30]}, None),
    ({"prompt": [5] * 2048}, None),
    ({"prompt": ["a"] * 1000}, "prompt"),
    ({"prompt": "a", "temperature": -1}, "temperature"),
    ({"prompt": "a", "temperature": "hot"}, "temperature"),
    ({"prompt": "a", "temperature": 1e400}, None),
    ({"prompt": "a", "top_p": 0}, "top_p"),
    ({"prompt": "a", "top_p": 1.1}, "top_p"),
    ({"prompt": "a", "top_k": -2}, "top_k"),
    ({"prompt": "a", "top_k": 1.5}, "top_k"),
    ({"prompt": "a", "min_p": 2}, "min_p"),
    ({"prompt": "a", "presence_penalty": 3}, "presence_penalty"),
    ({"prompt": "a", "frequency_penalty": -3}, "frequency_penalty"),
    ({"prompt": "a", "repetition_penalty": 0}, "repetition_penalty"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
    ({"prompt": "a", "max_tokens": -5}, "max_tokens"),
    ({"prompt": "a", "max_tokens": True}, "max_tokens"),
    ({"prompt": "a", "min_tokens": 17}, "min_tokens"),
    ({"prompt": "a", "logprobs": 21}, "logprobs"),
    ({"prompt": "a", "logprobs": True}, "logprobs"),
    ({"prompt": "a", "seed": 2**64}, "seed"),
    ({"prompt": "a", "seed": "x"}, "seed"),
    ({"prompt": "a", "n": 0}, "n"),
    ({"prompt": "a", "n": 129}, "n"),
    ({"prompt": "a", "stop": ""}, "stop"),
    ({"prompt": "a", "stop": 1}, "stop"),
    ({"prompt": "a", "stop": ["x"] * 65}, "stop"),
    ({"prompt": "a", "stop": ["x" * 2000]}, "stop"),
    ({"prompt": "a", "stop_token_ids": [999999]}, "stop_token_ids"),
    ({"prompt": "a", "stop_token_ids": "7"}, "stop_token_ids"),
    ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
    ({"prompt": "a", "logit_bias": {"999999": 1}}, "logit_bias"),
    ({"prompt": "a", "logit_bias": [1]}, "logit_bias"),
    ({"prompt": "a", "stream": "yes"}, "stream"),
    ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
    ({"prompt": "a", "stream": True, "stream_options": {"include_usage": 1}},
     "stream_options.include_usage"),
    ({"prompt": "a", "echo": True}, "echo"),
    ({"prompt": "a", "suffix": "b"}, "suffix"),
    ({"prompt": "a", "best_of": 2}, "best_of"),
    ({"prompt": "a", "guided_json": {}}, "guided_json"),
    ({"prompt": "a", "model": 7}, "model"),
]  # fmt: skip

CHAT_FAULTS = [
    ({}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "Hello"}, "messages"),
    ({"messages": ["Hello"]}, "messages"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
    ({"messages": [*USER, {"role": "assistant", "tool_calls": [{}]}]}, "messages[1].tool_calls"),
    ({"messages": USER, "top_logprobs": 2}, "top_logprobs"),
    ({"messages": USER, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"messages": USER, "logprobs": 3}, "logprobs"),
    ({"messages": USER, "tools": [{"type": "function"}]}, "tools"),
    ({"messages": USER, "response_format": {"type": "json_object"}}, "response_format"),
    ({"messages": USER, "max_completion_tokens": 0}, "max_tokens"),
    ({"messages": [{"role": "user", "content": "word " * 3000}]}, None),
]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [(COMPLETIONS, *fault) for fault in COMPLETION_FAULTS]
    + [(CHAT, *fault) for fault in CHAT_FAULTS],
)
def test_a_wrong_field_is_named(served: Served, path: str, body: Any, param: str | None) -> None:
    answer = call(served, path, body)
    assert answer.status == 400, answer.body
    assert answer.error["type"] == "invalid_request_error"
    assert len(answer.error["message"]) > 10
    assert "Traceback" not in answer.error["message"]
    assert "This is a bug" not in answer.error["message"]
    if param is not None:
        assert answer.error["param"] == param
        assert param.split(".")[-1] in answer.error["message"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"null", b"[]", b'"text"', b"\xff\xfe", b'{"prompt": NaN}', b"[" * 100_000,
     b'{"prompt": "a", "seed": ' + b"9" * 10_000 + b"}"],
)  # fmt: skip
@pytest.mark.parametrize("path", [COMPLETIONS, "/tokenize"])
def test_what_is_no_object_is_refused(served: Served, path: str, body: bytes) -> None:
    answer = call(served, path, body)
    assert answer.status == 400 and answer.error["type"] == "invalid_request_error"
    named = answer.error["param"] in ("seed", "prompt")
    assert named or re.search("body|JSON", answer.error["message"])


def test_other_refusals_have_their_own_status(served: Served) -> None:
    good = {"prompt": "a", "max_tokens": 1}
    assert call(served, "/nothing").status == 404
    assert call(served, CHAT).status == 405
    assert call(served, COMPLETIONS, good, Content_Type="text/plain").status == 415
    assert call(served, COMPLETIONS, good, Content_Encoding="gzip").status == 415
    other = call(served, COMPLETIONS, {**good, "model": "gpt-4"})
    assert (other.status, other.error["code"]) == (404, "model_not_found")
    assert "'Demo model'" in other.error["message"]
    long = call(served, COMPLETIONS, {"prompt": [5] * 2048})
    assert long.error["code"] == "context_length_exceeded"
    assert "2,048" in long.error["message"]


def test_a_stream_that_is_refused_has_a_status(served: Served) -> None:
    answer = call(served, COMPLETIONS, {"prompt": [5] * 2048, "stream": True})
    assert answer.status == 400
    assert answer.headers["Content-Type"] == "application/json"


def test_pages_and_rebound_names_are_refused(served: Served) -> None:
    assert call(served, "/v1/models").status == 200
    page = call(served, "/v1/models", Origin="https://evil.example")
    assert (page.status, page.error["code"]) == (403, "origin_not_allowed")
    assert "--cors-origin" in page.error["message"]
    rebound = call(served, "/v1/models", Host="evil.example")
    assert (rebound.status, rebound.error["code"]) == (403, "host_not_allowed")
    assert call(served, "/health", Host="evil.example").status == 200


def test_half_a_surrogate_pair_is_answered(served: Served) -> None:
    body = b'{"prompt": "\\ud83d", "max_tokens": 1, "stop": ["\\udc00"]}'
    assert call(served, COMPLETIONS, body).status == 200
    assert call(served, COMPLETIONS, b'{"prompt": "a", "model": "\\ud83d"}').status == 404


def test_unknown_and_harmless_fields_are_let_through(served: Served) -> None:
    body = {"prompt": "a", "max_tokens": 1, "user": "me", "echo": False, "best_of": 1,
            "never_heard_of": 1, "temperature": None, "stop": None}  # fmt: skip
    assert call(served, COMPLETIONS, body).status == 200


def test_tokens_there_and_back(served: Served) -> None:
    text = "Grüße, TTFT: 12 ms 🙂"
    made = json.loads(call(served, "/tokenize", {"prompt": text, "return_token_strs": True}).body)
    assert made["count"] == len(made["tokens"]) == len(made["token_strs"])
    assert made["max_model_len"] == 2048
    back = call(served, "/detokenize", {"tokens": made["tokens"]})
    assert json.loads(back.body) == {"prompt": text}
    bare = call(served, "/tokenize", {"prompt": text, "add_special_tokens": False})
    assert json.loads(bare.body)["tokens"] == made["tokens"]  # the starter model has no BOS
    chat = json.loads(call(served, "/tokenize", {"messages": USER}).body)["tokens"]
    written = json.loads(call(served, "/detokenize", {"tokens": chat}).body)["prompt"]
    assert written.startswith("<|im_start|>")
    assert call(served, "/tokenize", {"prompt": "a", "messages": USER}).status == 400
    assert call(served, "/tokenize", {}).status == 400
    assert call(served, "/detokenize", {"tokens": [99999]}).error["param"] == "tokens"
    assert call(served, "/detokenize", {"tokens": [-1]}).status == 400


def test_a_format_that_means_nothing_is_accepted(served: Served) -> None:
    body = {"messages": USER, "max_tokens": 1, "response_format": {"type": "text"}}
    assert call(served, CHAT, body).status == 200


def test_every_parameter_of_the_engine_is_a_field() -> None:
    own = set(SamplingParams.__dataclass_fields__)
    assert own <= {*ChatBody.__struct_fields__}
    assert own <= {*CompletionBody.__struct_fields__}


def test_the_description_has_every_field_and_route(served: Served) -> None:
    document = json.loads(call(served, "/openapi.json").body)
    body = document["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"] == {"$ref": "#/components/schemas/ChatBody"}
    schema = document["components"]["schemas"]["ChatBody"]
    assert set(schema["properties"]) == {*ChatBody.__struct_fields__}
    assert schema["required"] == ["messages"]
    assert schema["properties"]["n"]["anyOf"][0]["maximum"] == 128
    for path, operations in document["paths"].items():
        assert call(served, path.replace("{name}", "starter")).status in (200, 405)
        assert set(operations) <= {"get", "post"}


def test_the_engine_is_idle_after_all_that(served: Served) -> None:
    served.wait_idle()


@pytest.mark.slow
def test_a_fuzzer_finds_no_failure(served: Served, tmp_path: Path) -> None:
    """schemathesis, bounded. What its schema cannot say (an empty list of messages, a token id
    beyond the vocabulary) may be refused; nothing may fail, hang or be of another form."""
    pytest.importorskip("schemathesis")
    checks = ("not_a_server_error,status_code_conformance,content_type_conformance,"
              "response_schema_conformance,negative_data_rejection")  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", "run", f"{served.url}/openapi.json",
         "--checks", checks, "--max-examples", "4", "--seed", "1", "--request-timeout", "120",
         "--generation-database", "none"],
        capture_output=True, text=True, timeout=600, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "10 selected" in done.stdout
    served.wait_idle()
