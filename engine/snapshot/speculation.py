"""Speculative decoding: drafts that were verified, what was kept of them, and what it brought."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class SpeedUp(NamedTuple):
    """Tokens per second with drafts over those without, on the same load at the same number of
    requests; from so many steps with drafts and without."""

    factor: float
    num_drafted_steps: int
    num_plain_steps: int


@dataclass(frozen=True, slots=True)
class SpeculationSnapshot:
    """Speculative decoding since its method was chosen.

    method: "ngram", "draft_model" or "eagle3". rounds: verifications of at least one draft.
    drafted_per_position[i], accepted_per_position[i]: how many rounds drafted, and kept, an i-th
    token (from 0). draft_steps: steps with at least one round; verify_s: seconds of the model's
    passes in these; draft_s: of drafting, in all steps. draft_model: its name. weights, kv_cache:
    bytes of the draft model's. rest_steps: steps in a row in which adaptive drafting left everybody
    without drafts because they do not pay, but for a try now and then.

    Of a server that counts drafts and tells no more, method is "": told_drafted, told_accepted and
    rounds are its counts, told_length is what it says of the tokens of a round; None: not told.
    """

    method: str
    draft_model: str = ""
    rounds: int = 0
    drafted_per_position: tuple[int, ...] = ()
    accepted_per_position: tuple[int, ...] = ()
    draft_steps: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    weights: int = 0
    kv_cache: int = 0
    speed_up: SpeedUp | None = None
    rest_steps: int = 0
    told_drafted: int | None = None
    told_accepted: int | None = None
    told_length: float | None = None

    @property
    def drafted(self) -> int:
        return sum(self.drafted_per_position) if self.told_drafted is None else self.told_drafted

    @property
    def accepted(self) -> int:
        return sum(self.accepted_per_position) if self.told_accepted is None else self.told_accepted

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted tokens."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens of a round: 1 + accepted drafts."""
        return 1 + self.accepted / self.rounds if self.rounds else self.told_length
