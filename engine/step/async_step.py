"""Async scheduling: the next step is launched before the tokens of the last one are read.

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

from engine.batch.batch import Span, pack
from engine.batch.transfer import upload_places
from engine.errors import is_out_of_memory
from engine.runner.model_runner import ModelRunner
from engine.sampling.sampler import UNREAD, Sampler, row_of
from engine.scheduling.scheduler import Scheduler
from engine.speculation.proposer import NOTHING
from engine.speculation.verify import Verification
from engine.step.execute import InFlightStep
from engine.telemetry.recorder import StepTimer


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
