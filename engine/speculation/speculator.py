"""Speculative decoding around the engine's step: draft lengths, drafts, and statistics.

    set_limits(requests)   before the plan: how many drafts each request may have
    propose(plan)          after it: the plan with drafts added
    drafting.taps          during the model's pass
    follow(plan, outcomes) after it: the results, for a proposer that reads hidden states
    observe(...)           after the commit: accepted drafts, and their cost

It never affects which tokens are generated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.config import EngineConfig
from engine.runner.cuda_graphs import DecodeGraphs
from engine.scheduling.request import Grant, Outcome, Request, StepPlan
from engine.snapshot import SpeculationSnapshot
from engine.speculation.lengths import CostModel, choose_lengths
from engine.speculation.proposer import Proposal, Proposer
from engine.speculation.statistics import Acceptance, PositionAcceptance, SpeedMeter, num_accepted

PROBE_ROUNDS = 16
"""A request for which drafting does not pay is tried again with one draft after so many steps."""


class Speculator:
    """Owns the proposer of a loaded model, and the statistics of its drafts."""

    def __init__(self, config: EngineConfig, proposer: Proposer, name: str = "") -> None:
        self._config = config
        self.proposer = proposer
        self._name = name
        self._usual = Acceptance()
        self._places = PositionAcceptance()
        self._acceptance: dict[str, Acceptance] = {}
        self._idle: dict[str, int] = {}  # steps since a request had drafts
        self._costs = CostModel()
        self._meter = SpeedMeter()
        self._drafted: list[int] = []
        self._accepted: list[int] = []
        self._rounds = self._steps = self._rest_steps = 0
        self._draft_s = self._verify_s = 0.0

    def update(self, config: EngineConfig) -> None:
        """Apply live settings from the next step on."""
        self._config = config
        self.proposer.update(config)

    def forget(self, request_id: str) -> None:
        self._acceptance.pop(request_id, None)
        self._idle.pop(request_id, None)
        self.proposer.forget(request_id)

    # -- before the step --------------------------------------------------------------------

    def set_limits(
        self,
        running: Sequence[Request],
        num_waiting: int,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        """Set the draft_limit of every running request for the next plan. graphs: the steps that
        are captured, if any are."""
        for request in running:
            request.draft_limit = 0
        most = self._config.num_speculative_tokens
        decoding = [r for r in running if r.num_uncomputed_tokens == 1 and r.num_output_tokens]
        if most == 0:
            self._rest_steps = 0
        if most == 0 or not decoding:
            return
        alone = num_waiting == 0 and len(decoding) == len(running)
        if alone and self._meter.wants_plain_step():
            return
        if len(decoding) < len(running):
            graphs = None  # a step with a part of a prompt is launched in any case
        for request, limit in zip(decoding, self._limits(decoding, most, graphs), strict=True):
            request.draft_limit = limit

    def _limits(
        self, decoding: Sequence[Request], most: int, graphs: DecodeGraphs | None
    ) -> list[int]:
        cost = self._costs.cost if self._config.speculative_adaptive else None
        if cost is None:
            self._rest_steps = 0
            return [most] * len(decoding)
        usual = max(self._usual.rate, 0.01)
        scales = [self._acceptance.get(r.request_id, self._usual).rate / usual for r in decoding]
        worth = [self._places.worth(most, scale) for scale in scales]
        if graphs is None:
            limits = choose_lengths(worth, cost)
        else:
            contexts = [request.num_tokens for request in decoding]
            limits = choose_lengths(worth, cost, contexts, graphs.replays)
        self._rest_steps = 0 if any(limits) else self._rest_steps + 1
        for i, request in enumerate(decoding):
            idle = 0 if limits[i] else self._idle.get(request.request_id, 0) + 1
            if idle >= PROBE_ROUNDS:
                idle, limits[i] = 0, 1
            self._idle[request.request_id] = idle
        return limits

    def propose(self, plan: StepPlan) -> tuple[StepPlan, dict[str, Proposal]]:
        """The plan with drafts added where it has room for them, and the proposals by request."""
        places = [grant for grant in plan.grants if grant.num_draft_places]
        if not places:
            return plan, {}
        budget = max(0, self._config.step_token_limit - plan.num_tokens)
        found = self.proposer.propose(places, budget)
        proposals = {
            grant.request.request_id: proposal
            for grant, proposal in zip(places, found, strict=True)
        }
        grants = list(plan.grants)
        for place, grant in enumerate(grants):
            if grant.num_draft_places:
                drafts = proposals[grant.request.request_id].token_ids
                grants[place] = grant._replace(draft_token_ids=drafts)
        return plan._replace(grants=tuple(grants)), proposals

    @property
    def drafting(self) -> Proposer | None:
        """The proposer, where the next step may verify drafts, which follow from the last one's
        tokens."""
        return self.proposer if self._config.num_speculative_tokens else None

    # -- after it ---------------------------------------------------------------------------

    def follow(self, plan: StepPlan, outcomes: Mapping[str, Outcome]) -> None:
        """Pass the results of a step to the proposer before it is committed."""
        if self.drafting is not None:
            self.drafting.follow(plan, outcomes)

    def observe(
        self,
        plan: StepPlan,
        outcomes: Mapping[str, Outcome],
        draft_s: float,
        model_s: float,
        step_s: float,
        follow_s: float = 0.0,
        is_replayed: bool = False,
    ) -> None:
        """A committed step: seconds of drafting, of the model's pass, of the whole step, and of
        `follow` in it, which a step without drafts has only because others have some; whether it
        was replayed from a graph."""
        if self.drafting is None:
            return
        rounds = [grant for grant in plan.grants if grant.draft_token_ids]
        for grant in rounds:
            self._count(grant, outcomes)
        self._draft_s += draft_s + follow_s
        if rounds:
            self._steps += 1
            self._verify_s += model_s
            self._costs.passes(max(len(g.draft_token_ids) for g in rounds), draft_s)
        # after the commit only the outcome shows whether a grant sampled
        if all(g.is_decode and g.request.request_id in outcomes for g in plan.grants):
            tokens = sum(len(outcome.token_ids) for outcome in outcomes.values())
            self._costs.step(plan.num_tokens, step_s - draft_s, is_replayed)
            seconds = step_s if rounds else step_s - follow_s
            self._meter.observe(len(plan.grants), tokens, seconds, drafted=bool(rounds))

    def _count(self, grant: Grant, outcomes: Mapping[str, Outcome]) -> None:
        request_id, drafted = grant.request.request_id, len(grant.draft_token_ids)
        accepted = num_accepted(grant.draft_token_ids, outcomes[request_id].token_ids)
        self._usual.observe(drafted, accepted)
        self._places.observe(drafted, accepted)
        known = self._acceptance.get(request_id)
        if known is None:
            known = self._acceptance[request_id] = Acceptance(self._usual.rate)
        known.observe(drafted, accepted)
        self._rounds += 1
        for count, by_position in ((drafted, self._drafted), (accepted, self._accepted)):
            by_position += [0] * (count - len(by_position))
            for position in range(count):
                by_position[position] += 1

    def snapshot(self) -> SpeculationSnapshot:
        missing = len(self._drafted) - len(self._accepted)
        return SpeculationSnapshot(
            method=self._config.speculative_method,
            draft_model=self._name,
            rounds=self._rounds,
            drafted_per_position=tuple(self._drafted),
            accepted_per_position=(*self._accepted, *[0] * missing),
            draft_steps=self._steps,
            draft_s=self._draft_s,
            verify_s=self._verify_s,
            weights=self.proposer.weights_bytes,
            kv_cache=self.proposer.cache_bytes,
            speed_up=self._meter.speed_up,
            rest_steps=self._rest_steps,
        )
