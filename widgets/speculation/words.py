"""What is said of speculative decoding, in words. No Qt."""

from __future__ import annotations

from typing import NamedTuple

from engine.snapshot import SpeculationSnapshot

METHODS = {"ngram": "n-gram lookup", "draft_model": "draft model", "eagle3": "EAGLE-3 head"}
FEWEST_PLAIN_STEPS = 5
"""Steps without drafts from which on the gain is said."""
REST_STEPS = 8
"""Steps without drafts by adaptive drafting's own choice from which on it is said."""
_CLEAR = 0.03  # of the speed: less than this is no difference


class Verdict(NamedTuple):
    """`tone`: "text", "success" or "warning", names of the theme."""

    text: str
    tone: str
    detail: str


def verdict(figures: SpeculationSnapshot) -> Verdict:
    """Whether drafting pays, from the measured speed-up."""
    found = figures.speed_up
    if not figures.method:
        return Verdict(
            "The server drafts", "text",
            "Counted by the server since it was started. Whether replies are faster for it, and "
            "which drafts stand by their place, it does not tell.",
        )  # fmt: skip
    if figures.rest_steps >= REST_STEPS:
        told = f" Measured before: {found.factor:.2f}x." if found is not None else ""
        return Verdict(
            "Drafting has given itself up: it does not pay here", "warning",
            f"Adaptive drafts: none for {figures.rest_steps:,} steps, but for one that is tried "
            f"now and then; it begins again where they pay.{told}",
        )  # fmt: skip
    if not figures.rounds:
        return Verdict(
            "No draft was verified yet", "text",
            "Drafts are made while replies are written: send a message.",
        )  # fmt: skip
    if found is None or found.num_plain_steps < FEWEST_PLAIN_STEPS:
        seen = found.num_plain_steps if found is not None else 0
        return Verdict(
            "Measuring the gain", "text",
            f"One step in 64 runs without drafts, to be compared with: {seen} of "
            f"{FEWEST_PLAIN_STEPS} so far.",
        )  # fmt: skip
    basis = (
        f"Measured on this load: {found.num_drafted_steps:,} steps with drafts against "
        f"{found.num_plain_steps:,} without."
    )
    if found.factor > 1 + _CLEAR:
        return Verdict(f"Drafts make replies {found.factor:.2f}x faster", "success", basis)
    if found.factor < 1 - _CLEAR:
        slower = f"Drafts make replies slower ({found.factor:.2f}x): turn them off"
        return Verdict(slower, "warning", basis)
    return Verdict(f"Drafts make no difference ({found.factor:.2f}x)", "text", basis)


def source(figures: SpeculationSnapshot) -> str:
    """ "draft model “draft”"."""
    method = METHODS.get(figures.method, figures.method)
    return f"{method} “{figures.draft_model}”" if figures.draft_model else method


def acceptance(figures: SpeculationSnapshot) -> str:
    """ "3.42 tokens a round · 2,114 of 2,890 drafts accepted (73 %)"."""
    length, rate = figures.acceptance_length, figures.acceptance_rate
    accepted = f"{figures.accepted:,} of {figures.drafted:,} drafts accepted"
    parts = [
        "" if length is None else f"{length:.2f} tokens a round",
        "" if rate is None else f"{accepted} ({100 * rate:.0f} %)",
    ]
    return " · ".join(filter(None, parts))


def times(figures: SpeculationSnapshot) -> str:
    """ "drafting 1.9 ms, verifying 12.4 ms a step"."""
    if not figures.draft_steps:
        return ""
    draft = 1e3 * figures.draft_s / figures.draft_steps
    verify = 1e3 * figures.verify_s / figures.draft_steps
    return f"drafting {draft:.1f} ms, verifying {verify:.1f} ms a step"
