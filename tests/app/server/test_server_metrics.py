"""What the server counts, and how its requests are called."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.server.call import new_call_id, origin_of, request_id_of
from engine.heartbeat import Pulse
from engine.messages import Recovered, Stalled
from engine.snapshot import FinishReason
from tests.app.server.conftest import Served, wait_until
from tests.app.server.test_bad_input import COMPLETIONS, call
from tests.app.server.test_server import ASK, Puppet, puppet

__all__ = ["puppet"]


def metric_values(served: Any) -> dict[str, float]:
    text = call(served, "/metrics").body.decode()
    return {
        sample.name
        + "".join(
            f"|{sample.labels[k]}" for k in ("finished_reason", "le") if k in sample.labels
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_agree_with_the_snapshot(served: Served) -> None:
    for i in range(3):
        assert (
            call(served, COMPLETIONS, {**ASK, "prompt": list(range(40)), "seed": i}).status == 200
        )
    served.wait_idle()

    def all_counted() -> bool:
        """Snapshots come now and then, events at once: the last one may know two of three."""
        assert served.last is not None
        finished = sum(served.last.counters.finished.values())
        return finished == metric_values(served)["vllm:e2e_request_latency_seconds_count"]

    wait_until(all_counted)
    counters = served.wait_idle().counters
    wait_until(
        lambda: metric_values(served)["vllm:generation_tokens_total"] == counters.generation_tokens
    )
    now = metric_values(served)
    assert now["vllm:prompt_tokens_total"] == counters.prompt_tokens + counters.cached_prompt_tokens
    assert now["vllm:prefix_cache_queries_total"] == counters.prefix_queries
    assert now["vllm:prefix_cache_hits_total"] == counters.prefix_hits > 0
    assert now["vllm:num_preemptions_total"] == counters.preemptions
    for reason in FinishReason:
        assert now[f"vllm:request_success_total|{reason}"] == counters.finished.get(reason, 0)
    done = sum(counters.finished.values())
    assert now["vllm:e2e_request_latency_seconds_count"] == done
    assert now["vllm:request_prompt_tokens_count"] == done
    assert now["vllm:request_generation_tokens_sum"] == counters.generation_tokens
    assert now["vllm:time_to_first_token_seconds_count"] == done
    assert now["vllm:inter_token_latency_seconds_count"] == counters.generation_tokens - done
    assert now["vllm:inter_token_latency_seconds_bucket|+Inf"] == counters.generation_tokens - done
    assert "vllm:inter_token_latency_seconds_bucket|0.001" in now
    assert now["vllm:num_requests_running"] == now["vllm:num_requests_waiting"] == 0


def test_health_tells_a_stuck_engine(puppet: Callable[..., Puppet]) -> None:
    made = puppet()
    assert json.loads(call(made, "/health").body) == {"status": "ok"}
    made.engine_client.on_event(Stalled("step of 9 tokens", 6.0))
    wait_until(lambda: call(made, "/health").status == 503)
    body = json.loads(call(made, "/health").body)
    assert body["error"]["code"] == "engine_stuck"
    assert body["doing"] == "step of 9 tokens" and body["seconds_since_beat"] == 6
    made.engine_client.on_event(Recovered(7.0))
    wait_until(lambda: call(made, "/health").status == 200)


@pytest.mark.parametrize(
    ("pulse", "status"),
    [
        (Pulse("", 0.0), 200), (Pulse("step", 4.0), 200),
        (Pulse("step", 9.0, is_stuck=True), 503), (Pulse("", 0.0, is_alive=False), 503),
    ],
)  # fmt: skip
def test_health_and_metrics_give_the_heartbeat(
    pulse: Pulse, status: int, puppet: Callable[..., Puppet]
) -> None:
    made = puppet()
    made.engine_client.pulse = lambda: pulse
    answer = call(made, "/health")
    body = json.loads(answer.body)
    assert answer.status == status and body["seconds_since_beat"] == pulse.seconds
    assert body["doing"] == (pulse.doing or "idle")
    assert heartbeat_ages(made) == [pulse.seconds]
    made.engine_client.pulse = lambda: None
    assert heartbeat_ages(made) == [], "not reported"


def heartbeat_ages(made: Puppet) -> list[float]:
    page = call(made, "/metrics").body.decode()
    samples = [s for family in text_string_to_metric_families(page) for s in family.samples]
    return [s.value for s in samples if s.name == "inferdeck:engine_heartbeat_age_seconds"]


def test_metrics_carry_vllms_labels(served: Served) -> None:
    families = text_string_to_metric_families(call(served, "/metrics").body.decode())
    samples = [sample for family in families for sample in family.samples]
    labels = [(s.labels["model_name"], s.labels["engine"]) for s in samples]
    assert set(labels) == {("Demo model", "0")}
    other = call(served, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert other.body.endswith(b"# EOF\n")


def test_requests_are_told_from_chats(served: Served) -> None:
    call_id = new_call_id("chatcmpl")
    name = f"Chat API {call_id[9:13]}"
    assert origin_of(request_id_of(call_id, 0, 1)) == name
    assert origin_of(request_id_of(call_id, 2, 3)) == f"{name}-2"
    assert (origin_of(new_call_id("cmpl")) or "").startswith("Completions API ")
    assert origin_of("load-12") is None
    assert origin_of("6f1c2d3e-0000") is None


def test_the_time_to_the_first_token_is_told_from_the_engines_part(served: Served) -> None:
    """From the first bytes of a request, however slowly the rest comes, until the client has the
    token on its way."""
    names = "vllm:time_to_first_token_seconds", "inferdeck:engine_time_to_first_token_seconds"

    def sums() -> list[float]:
        now = metric_values(served)
        assert now[f"{names[0]}_count"] == now[f"{names[1]}_count"]
        return [now[f"{name}_sum"] for name in names]

    served.wait_idle()
    before = sums()
    body = json.dumps({**ASK, "stream": True}).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(served.address, 120) as client:
        client.sendall(head.encode())
        time.sleep(0.25)
        client.sendall(f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        first = client.recv(65536)
        assert b"200 OK" in first and b"data: {" in first  # head and token come in one piece
        while client.recv(65536):
            pass
    served.wait_idle()
    wait_until(lambda: sums()[1] > before[1])
    whole, engine = (now - then for now, then in zip(sums(), before, strict=True))
    assert whole >= engine >= 0.25
