"""Where a step goes, as parts of a bar and in words."""

from __future__ import annotations

from datetime import date, datetime

from app.panels.step_account import Account
from engine.peaks import Peaks
from engine.step_cost import Split, Work
from widgets.parts_bar import Part

PARTS = (
    ("Reading weights", "weights", "weights", "bytes of the weights that a step reads, at peak"),
    ("Reading KV", "kv_used", "kv", "keys and values of all requests of the step, at peak"),
    ("Arithmetic", "arithmetic", "arithmetic", "beyond what is hidden behind the reading"),
    ("Launch and rest", "launch", "launch",
     "the model's measured time less what was counted: starting operations, small ones, and "
     "reading or computing slower than the peaks"),
    ("Python", "python", "python", "scheduling, sampling and commit, measured"),
    ("Drafting", "draft", "draft", "the draft model or lookup proposes tokens, measured"),
    ("Between steps", "queued", "queue", "requests wait for the next step, measured"),
)  # fmt: skip
_SHORT = (("weights", "weights"), ("KV", "kv"), ("arithmetic", "arithmetic"),
          ("launch and rest", "launch"), ("Python", "python"))  # fmt: skip
_TRUSTED = 0.9
FASTER = (
    ". The steps are faster than that: their weights stay in the processor's cache, or something "
    "else kept the machine busy while it was measured"
)


def parts_of(split: Split) -> list[Part]:
    shares = split.shares()
    return [
        Part(
            label, color, getattr(shares, key),
            (ms(getattr(split, key)), f"{100 * getattr(shares, key):.0f} %"), tip,
        )
        for label, color, key, tip in PARTS
    ]  # fmt: skip


def counted_words(account: Account) -> str:
    """What was counted, and how near the peak the reading came."""
    work, split = account.work, account.split
    model_s = split.floor + split.launch
    rate = (work.weights + work.kv) / model_s / 1e9 if model_s else 0.0
    words = (
        f"a step reads {_bytes(work.weights)} weights and {_bytes(work.kv)} KV "
        f"({rate:.1f} GB/s) for {_operations(work)}"
    )
    if account.exchange <= 0:
        return words
    return f"{words}; of the model's time {short_ms(account.exchange)} exchange between ranks"


def _operations(work: Work) -> str:
    count = work.linear + work.attention
    for unit, factor in (("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} FLOP"


def _bytes(count: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} B"


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms"


def peaks_words(peaks: Peaks, speed: float) -> str:
    day = datetime.fromtimestamp(peaks.measured_at)
    when = f"today {day:%H:%M}" if day.date() == date.today() else f"{day:%Y-%m-%d}"
    faster = "" if speed > _TRUSTED else FASTER
    return (
        f"peaks: {peaks.read_bytes_per_s / 1e9:.1f} GB/s, {peaks.flops_per_s / 1e9:,.0f} GFLOP/s "
        f"in {peaks.dtype}, {peaks.num_threads} threads, measured {when}{faster}"
    )


def short_ms(seconds: float) -> str:
    """With three digits: for a sentence, where nothing has to line up."""
    value = seconds * 1e3
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f} ms"


def split_words(split: Split) -> str:
    """ "weights 71 %, KV 9 %, launch and rest 12 %": what is less than 1 % is left out."""
    shares = split.shares()
    parts = ((short, getattr(shares, key)) for short, key in _SHORT)
    return ", ".join(f"{short} {100 * share:.0f} %" for short, share in parts if share >= 0.005)
