"""An output that begins with given tokens goes on as if they had been sampled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import LLMEngine, SamplingParams
from engine.errors import InvalidRequestError
from engine.snapshot import FinishReason
from engine.step.output import RequestOutput
from tests.engine import tiny_models
from tests.tiers import examples

MakeEngine = Callable[..., LLMEngine]


def run(engine: LLMEngine, prompt: Any, params: SamplingParams, given: list[int]) -> RequestOutput:
    """The whole output; `token_ids` are those that were sampled."""
    request_id = engine.add_request(prompt, params, begin_with=given)
    output = RequestOutput(request_id, 0)
    while engine.has_unfinished:
        for event in engine.step():
            output.extend(event)
        engine.check_integrity()
    return output


@settings(
    max_examples=examples(20),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_the_rest_of_an_output_is_the_same_wherever_it_is_taken_up(
    make_engine: MakeEngine, data: st.DataObject
) -> None:
    engine = make_engine(max_num_batched_tokens=data.draw(st.integers(4, 64)))
    params = SamplingParams(
        temperature=data.draw(st.sampled_from([0.0, 1.0])),
        seed=data.draw(st.integers(0, 5)),
        presence_penalty=data.draw(st.sampled_from([0.0, 1.5])),
        frequency_penalty=data.draw(st.sampled_from([0.0, 0.5])),
        max_tokens=data.draw(st.integers(2, 24)),
        logprobs=2,
        ignore_eos=data.draw(st.booleans()),
    )
    prompt = tiny_models.make_prompts((data.draw(st.integers(1, 30)),), seed=2)[0]
    whole = run(engine, prompt, params, [])
    cut = data.draw(st.integers(0, len(whole.token_ids) - 1))
    rest = run(engine, prompt, params, whole.token_ids[:cut])
    assert rest.token_ids == whole.token_ids[cut:]
    assert rest.text == whole.text  # byte for byte, what was given included
    assert rest.finish_reason is whole.finish_reason
    assert [entry.token_id for entry in rest.logprobs] == rest.token_ids


def test_another_token_leads_elsewhere_and_what_is_before_it_stays(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine()
    params = SamplingParams(temperature=0, max_tokens=16, logprobs=3, ignore_eos=True)
    prompt = tiny_models.make_prompts((12,), seed=3)[0]
    whole = run(engine, prompt, params, [])
    other = whole.logprobs[5].alternatives[1][0]
    branch = run(engine, prompt, params, [*whole.token_ids[:5], other])
    decode = engine.tokenizer.decode
    given = decode([*whole.token_ids[:5], other])
    # decoded alone, a beginning loses its space
    assert branch.text.lstrip().startswith(given.rstrip("\ufffd"))
    assert len(branch.token_ids) == 10 and branch.finish_reason is FinishReason.LENGTH


def test_a_given_token_can_end_the_output_at_once(make_engine: MakeEngine) -> None:
    engine = make_engine()
    prompt = tiny_models.make_prompts((12,), seed=3)[0]
    params = SamplingParams(temperature=0, max_tokens=9, stop_token_ids=(7,))
    ended = run(engine, prompt, params, [5, 7])
    assert (ended.token_ids, ended.finish_reason) == ([], FinishReason.STOP)
    assert ended.text == run(engine, prompt, SamplingParams(max_tokens=1), [5]).text
    full = run(engine, prompt, params, [5] * 9)
    assert (full.token_ids, full.finish_reason) == ([], FinishReason.LENGTH)
    assert not engine.has_unfinished


def test_a_given_token_that_the_model_does_not_know_is_refused(make_engine: MakeEngine) -> None:
    with pytest.raises(InvalidRequestError, match="1000000"):
        make_engine().add_request([1, 2], begin_with=[10**6])
