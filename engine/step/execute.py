"""An in-flight step: `launch` plans and launches it; `read` blocks until the device is done.

With async scheduling the next step is launched before the tokens of the last one are read.

    host     | plan, launch N+1 | read N | text, events of N | plan, launch N+2 | read N+1 | ...
    device   | ------- N ------ | ------------ N+1 ---------------- | -------- N+2 ------- ...

The device is never idle while the host works, as long as every request decodes. The tokens of N
reach the inputs of N+1 on the device. When the host launches N+1 it does not know whether a request
ended with its token of N (EOS, a stop string, bad logits, an abort): then the request's row of N+1
is dropped when N+1 is read.

Such a row still writes K and V to its slot, when the request's blocks are free already and may be
another request's. That does no harm, because all steps run in one stream, in launch order:

- The slot lies behind the last token that the request ever had, in a block that is not full, hence
  not published and of this request alone: prefix caching never hands it on.
- The block's next owner writes to it in a step that is launched later, and reads only what it
  wrote itself. Blocks are cleared after bad logits behind N+1 in the stream, too.
- Blocks are published when a step is committed, up to the tokens that are committed then.

A step whose requests have all ended is dropped. A dropped step is computed again, with the same
tokens, if a request still needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.batch.batch import Span, pack, spans_of
from engine.batch.transfer import upload_places
from engine.errors import is_out_of_memory
from engine.hardware.step_threads import StepThreads
from engine.host.model_host import ModelHost
from engine.runner.model_runner import ModelRunner
from engine.sampling.sampler import UNREAD, Sampler, SamplingRow, row_of
from engine.scheduling.request import Grant, StepPlan
from engine.scheduling.scheduler import Scheduler
from engine.snapshot import RequestState
from engine.speculation.proposer import NOTHING, Proposal
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
    speculator: Speculator | None,
    host: ModelHost,
    threads: StepThreads,
    clock: Callable[[], float],
    on_size: Callable[[int], None] = lambda num_tokens: None,
    *,
    is_followed: bool = False,
) -> InFlightStep | None:
    """Plan and launch the next step; None without work. on_size: called with its tokens, drafts not
    among them. is_followed: whether the one after it may be launched before this one is read."""
    timer = StepTimer(clock())
    if speculator is not None:
        speculator.set_limits(scheduler.running, len(scheduler.waiting), host.runner.graphs)
    plan = scheduler.plan(timer.start)
    if not plan.grants:
        return None
    on_size(plan.num_tokens)
    planned = clock()
    proposals: dict[str, Proposal] = {}
    if speculator is not None:
        plan, proposals = speculator.propose(plan)
    drafted = clock()
    # drafts are counted: a step is as large as what the model computes
    timer.num_threads = threads.begin(plan.num_tokens, timer.start, is_timed=not is_followed)
    batch = pack(spans_of(plan), scheduler.pool.block_size)
    sampling = [grant for grant in plan.grants if grant.samples]  # as the rows of logits
    packed = clock()
    drafting = None if speculator is None else speculator.drafting
    logits = host.runner.execute(batch, taps=None if drafting is None else drafting.taps)
    computed = clock()
    drafts = [proposals.get(grant.request.request_id, NOTHING) for grant in sampling]
    rows = [_rows(grant) for grant in sampling]
    verification = Verification(host.sampler, logits, rows, drafts)
    launched = clock()
    timer.schedule_s = planned - timer.start + packed - drafted
    timer.draft_s = drafted - planned
    timer.model_s, timer.sample_s = computed - packed, launched - computed
    is_replayed = host.runner.was_replayed
    return InFlightStep(plan, sampling, verification, timer, launched, is_replayed=is_replayed)


def _rows(grant: Grant) -> list[SamplingRow]:
    """The rows that are sampled for a request: after its last token, and after every draft."""
    drafts = grant.draft_token_ids
    return [row_of(grant.request, drafts[:count]) for count in range(len(drafts) + 1)]


def _runs(grant: Grant) -> bool:
    return grant.request.state is RequestState.RUNNING


def launch_next(
    step: InFlightStep,
    scheduler: Scheduler,
    runner: ModelRunner,
    sampler: Sampler,
    refused: Callable[[Exception], object] = lambda error: None,
) -> InFlightStep | None:
    """Launch the step after `step`; None if its plan needs the tokens of `step` (see
    `Scheduler.plan_next`), or out of memory for both: then `refused` gets the error."""
    drawn = step.verification.drawn
    plan = None if drawn is None else scheduler.plan_next(step.plan)
    if plan is None or drawn is None:
        return None
    tokens = drawn.token_ids
    requests = [grant.request for grant in plan.grants]
    # the token stands for the one on the device
    spans = [Span((0,), grant.start, grant.request.block_table, 1) for grant in plan.grants]
    try:
        if len(requests) < len(step.sampling):
            rows = {id(grant.request): row for row, grant in enumerate(step.sampling)}
            tokens = tokens[upload_places([rows[id(r)] for r in requests], tokens.device)]
        logits = runner.execute(pack(spans, scheduler.pool.block_size), tokens)
        sampled = [[row_of(request, (UNREAD,))] for request in requests]
        proposals = [NOTHING] * len(requests)
        verification = Verification(sampler, logits, sampled, proposals, tokens)
    except Exception as error:
        scheduler.revoke_next(plan)
        if is_out_of_memory(error):
            refused(error)
            return None
        raise
    return InFlightStep(plan, list(plan.grants), verification, StepTimer(0.0), 0.0, is_async=True)
