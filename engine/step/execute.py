"""An in-flight step: `launch` plans and launches it; `read` blocks until the device is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.batch.batch import pack, spans_of
from engine.hardware.step_threads import StepThreads
from engine.host.model_host import ModelHost
from engine.sampling.sampler import SamplingRow, row_of
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_plan import Grant, StepPlan
from engine.snapshot import RequestState
from engine.speculation.proposer import NOTHING
from engine.speculation.speculator import Speculator
from engine.speculation.verify import Verification, Verified
from engine.telemetry.recorder import StepTimer


@dataclass(slots=True)
class InFlightStep:
    """A step that was launched and not read yet. sampling: the grants whose rows are sampled, in
    row order. launched: the time of it. is_async: launched before the previous step was read.
    is_replayed: from a CUDA graph.
    """

    plan: StepPlan
    sampling: list[Grant]
    verification: Verification
    timer: StepTimer
    launched: float
    is_async: bool = False
    is_replayed: bool = False

    def drop_ended(self) -> None:
        """Drop requests from the plan that ended since it was made."""
        grants = tuple(grant for grant in self.plan.grants if _runs(grant))
        self.plan = self.plan._replace(grants=grants)

    def read(self) -> tuple[list[Grant], list[Verified]]:
        """Results of the requests that still run. Blocks until the device is done."""
        pairs = zip(self.sampling, self.verification.read(), strict=True)
        kept = [(grant, found) for grant, found in pairs if _runs(grant)]
        return [grant for grant, _ in kept], [found for _, found in kept]


def launch(
    scheduler: Scheduler,
    speculator: Speculator,
    host: ModelHost,
    threads: StepThreads,
    clock: Callable[[], float],
    *,
    is_followed: bool = False,
) -> InFlightStep | None:
    """Plan and launch the next step; None without work. is_followed: whether the one after it may
    be launched before this one is read."""
    timer = StepTimer(clock())
    speculator.set_limits(scheduler.running, len(scheduler.waiting), host.runner.graphs)
    plan = scheduler.plan(timer.start)
    if not plan.grants:
        return None
    planned = clock()
    plan, proposals = speculator.propose(plan)
    drafted = clock()
    # drafts are counted: a step is as large as what the model computes
    timer.num_threads = threads.begin(plan.num_tokens, timer.start, is_timed=not is_followed)
    batch = pack(spans_of(plan), scheduler.pool.block_size)
    sampling = [grant for grant in plan.grants if grant.samples]  # as the rows of logits
    packed = clock()
    logits = host.runner.execute(batch, taps=speculator.taps)
    computed = clock()
    drafts = [proposals.get(grant.request.request_id, NOTHING) for grant in sampling]
    rows = [_rows(grant) for grant in sampling]
    verification = Verification(host.sampler, logits, rows, drafts)
    launched = clock()
    timer.schedule_s = planned - timer.start + packed - drafted
    timer.draft_s = drafted - planned
    timer.model_s, timer.sample_s = computed - packed, launched - computed
    timer.exchange_s = host.runner.exchange_s
    is_replayed = host.runner.was_replayed
    return InFlightStep(plan, sampling, verification, timer, launched, is_replayed=is_replayed)


def _rows(grant: Grant) -> list[SamplingRow]:
    """The rows that are sampled for a request: after its last token, and after every draft."""
    drafts = grant.draft_token_ids
    return [row_of(grant.request, drafts[:count]) for count in range(len(drafts) + 1)]


def _runs(grant: Grant) -> bool:
    return grant.request.state is RequestState.RUNNING
