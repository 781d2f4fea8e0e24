"""OpenAI's own client against the server: everything it can ask for comes back as it expects."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from tests.app.server.conftest import Served, wait_until

openai = pytest.importorskip("openai")

QUESTION: Any = [{"role": "user", "content": "What is TTFT?"}]


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def chat(client: Any, **options: Any) -> Any:
    options = {"temperature": 0, "max_tokens": 12, **options}
    return client.chat.completions.create(model="starter", messages=QUESTION, **options)


def test_a_chat(client: Any) -> None:
    reply = chat(client)
    (choice,) = reply.choices
    assert choice.message.role == "assistant"
    assert "time to first token" in choice.message.content
    assert choice.finish_reason == "length"
    assert reply.usage.completion_tokens == 12
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 12
    assert reply.model == "Demo model"


def test_a_stream_is_the_whole_reply_in_pieces(client: Any) -> None:
    whole = chat(client)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    ends = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert ends[-1] == "length"
    assert set(ends[:-1]) <= {None}
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 12
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_cached_tokens_are_counted(client: Any) -> None:
    long: Any = [{"role": "user", "content": "What is paging? " * 20}]
    for _ in range(2):
        reply = client.chat.completions.create(model="starter", messages=long, max_tokens=1)
    usage = reply.usage
    assert 16 <= usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens


def test_logprobs_of_a_chat(client: Any) -> None:
    content = chat(client, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert len(content) == 12
    for entry in content:
        assert entry.top_logprobs[0].token == entry.token  # greedy
        assert len(entry.top_logprobs) == 3
        assert bytes(entry.bytes).decode() == entry.token
        assert -math.inf < entry.logprob <= 0


def test_the_bytes_of_tokens_are_those_of_the_text(client: Any) -> None:
    bias: Any = {"0": -100}
    reply = chat(client, logprobs=True, temperature=2, seed=3, max_tokens=60, logit_bias=bias)
    (choice,) = reply.choices
    data = b"".join(bytes(e.bytes) for e in choice.logprobs.content if not e.token.startswith("<|"))
    assert data.decode(errors="replace") == choice.message.content


def test_completions_in_all_forms_of_prompts(client: Any, served: Served) -> None:
    def complete(prompt: Any, **options: Any) -> Any:
        return client.completions.create(
            model="starter", prompt=prompt, temperature=0, max_tokens=6, **options
        )

    ids = client.post("../tokenize", body={"prompt": "What is"}, cast_to=object)["tokens"]
    one = complete("What is").choices[0].text
    assert one
    assert complete(ids).choices[0].text == one
    several = complete(["What is", "Once upon"])
    assert [choice.index for choice in several.choices] == [0, 1]
    assert several.choices[0].text == one
    assert [choice.text for choice in complete([ids, ids]).choices] == [one, one]
    logprobs = complete("What is", logprobs=2).choices[0].logprobs
    assert "".join(logprobs.tokens) == one
    assert [len(top) for top in logprobs.top_logprobs] == [2] * 6
    assert logprobs.text_offset[1] == len(logprobs.tokens[0])


def test_stop_texts_and_tokens(client: Any) -> None:
    whole = chat(client, max_tokens=40).choices[0].message.content
    stopped = chat(client, max_tokens=40, stop=["first"]).choices[0]
    assert stopped.finish_reason == "stop"
    assert stopped.message.content == whole.split("first")[0]
    kept = chat(
        client, max_tokens=40, stop="first", extra_body={"include_stop_str_in_output": True}
    )
    assert kept.choices[0].message.content == whole.split("first")[0] + "first"


def test_seeds_and_several_replies(client: Any) -> None:
    def sample(seed: int, n: int = 1) -> list[str]:
        reply = chat(client, temperature=1.5, seed=seed, n=n)
        assert reply.usage.completion_tokens <= 12 * n
        return [choice.message.content for choice in reply.choices]

    three = sample(7, n=3)
    assert sample(7, n=3) == three
    assert sample(7) == three[:1]
    assert len(set(three)) == 3
    chunks = list(chat(client, temperature=1.5, seed=7, n=3, stream=True))
    texts = ["", "", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content
    assert texts == three


def test_sampling_parameters_of_the_engine_arrive(client: Any) -> None:
    extra = {"ignore_eos": True, "min_tokens": 30, "top_k": 1, "min_p": 0.1,
             "repetition_penalty": 1.3, "return_token_ids": True}  # fmt: skip
    reply = chat(client, temperature=1, max_tokens=30, extra_body=extra)
    assert len(reply.choices[0].token_ids) == 30
    assert len(reply.choices[0].prompt_token_ids) == reply.usage.prompt_tokens
    plain = chat(client, temperature=0, max_tokens=30)
    assert plain.choices[0].message.content != reply.choices[0].message.content
    biased = chat(client, logit_bias={"300": 100}, max_tokens=3, extra_body=extra | {
        "repetition_penalty": 1.0, "min_tokens": 0})  # fmt: skip
    assert biased.choices[0].token_ids == [300] * 3


def test_max_completion_tokens_goes_first(client: Any) -> None:
    reply = chat(client, max_tokens=12, max_completion_tokens=3)
    assert reply.usage.completion_tokens == 3


def test_a_closed_stream_aborts_its_request(client: Any, served: Served) -> None:
    before = served.wait_idle().counters.finished.get("abort", 0)
    with chat(client, stream=True, max_tokens=1500, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
        wait_until(lambda: served.engine_client.num_in_flight == 1)
    after = served.wait_idle().counters
    assert after.finished["abort"] == before + 1


def test_a_client_that_times_out_aborts_a_whole_reply(client: Any, served: Served) -> None:
    before = served.wait_idle().counters.finished.get("abort", 0)
    with pytest.raises(openai.APITimeoutError):
        chat(client, max_tokens=1900, timeout=1.0, extra_body={"ignore_eos": True})
    # On a busy machine the server reads the request when its client has gone already.
    wait_until(lambda: served.wait_idle().counters.finished.get("abort", 0) == before + 1)


def test_models(client: Any) -> None:
    (model,) = client.models.list().data
    assert model.id == "Demo model"
    assert model.max_model_len == 2048
    for name in ("Demo model", "starter"):  # its name on servers of older versions
        assert client.models.retrieve(name).id == "Demo model"
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("other")
    assert error.value.code == "model_not_found"
