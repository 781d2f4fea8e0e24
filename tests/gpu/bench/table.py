"""The report as a short text: what matters most comes last, where one looks first. No torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tests.gpu.bench.parts import FIRST

LONGEST = 11_500
"""Characters: what is of least interest is left out beyond."""

Report = Mapping[str, Any]


def table(report: Report, wanted: Collection[str] = (), longest: int = LONGEST) -> str:
    """Sections in order of interest, those of the parts `wanted` before others, until the text is
    full; printed the other way around."""
    rows = report["rows"]
    sections = [
        ("", _goals(report)),
        ("", _failures(report)),
        ("decode", _waves(rows["wave"], first=True)),
        ("peers", _peers(rows["peer"])),
        ("ceilings", _ceilings(report)),
        ("profile", _profiles(rows["profile"])),
        ("kernels", _linears(rows["linear"])),
        ("kernels", _attention(rows["attention"])),
        ("drafts", _drafts(rows["drafts"])),
        ("budgets", _budgets(rows["budget"], rows["divided"])),
        ("small", _arrivals(rows["arrivals"])),
        ("kernels", _others({**rows["fused"], **rows["sampler"]})),
        ("decode", _waves(rows["wave"], first=False)),
        ("", _published(report["published"])),
    ]
    first = sections[:2] + [section for section in sections[2:] if section[0] in wanted]
    kept, left, size = [], 0, 0
    for _, lines in first + [section for section in sections if section not in first]:
        if not lines:
            continue
        text = "\n".join(lines)
        if size + len(text) + 2 > longest - 60:
            left += 1
            continue
        kept.append(text)
        size += len(text) + 2
    if left:
        kept.append(f"({left} sections more are in the report)")
    return "\n\n".join(reversed(kept))


def _goals(report: Report) -> list[str]:
    device = report["machine"].get("device", {}).get("name", "no device")
    lines = [f"GOALS on {device}, {report['date']}, commit {report['commit'][:12] or 'unknown'}"]
    for goal in report["goals"]:
        found = "" if goal["measured"] is None else f"{goal['measured']:.2f}"
        lines.append(
            f"  {goal['verdict']:12}  {goal['text']:58} {found:>6} of {goal['wanted']:.2f}"
        )
    if report["num_left"]:
        left = report["num_left"]
        lines.append(f"  {left} cells have no result: run again with a longer --time-limit")
    return lines


def _failures(report: Report) -> list[str]:
    failed = report["failed"]
    lines = [f"FAILED: {len(failed)} cells"] if failed else []
    lines += [f"  {one['name']}: {one['error']}"[:200] for one in failed[:20]]
    if len(failed) > 20:
        lines.append(f"  and {len(failed) - 20} more")
    counts = report["tests"].get("counts", {})
    lines += [f"  {one['test']}" for one in report["tests"].get("failures", ())[:10]]
    if counts:
        lines.append("TESTS " + ", ".join(f"{n} {name}" for name, n in sorted(counts.items())))
    return lines


def _waves(rows: Mapping[str, Any], *, first: bool) -> list[str]:
    chosen = [r for r in rows.values() if (r["concurrency"] in FIRST) is first]
    if not chosen:
        return []
    lines = ["WAVES, ms; in brackets the share of the floor; p99, or the longest of few"]
    lines.append("  weights kv   prompts   at once         TTFT          ITL         step"
                 "       tokens/s    requests/s")  # fmt: skip
    order = sorted(chosen, key=lambda r: (r["precision"], r["kv"], r["prompts"], r["concurrency"]))
    for r in reversed(order):
        cells = (
            _with(r, "ttft_ms", "ttft_fraction", 1), _with(r, "itl_ms", "itl_fraction", 2),
            _with(r, "step_ms", "step_fraction", 2), _with(r, "tokens_per_s", "tokens_fraction", 0),
            _with(r, "requests_per_s", "requests_fraction", 2),
        )  # fmt: skip
        label = f"{r['precision']:7} {r['kv']:4} {r['prompts']:7} {r['concurrency']:7}"
        lines.append(f"  {label} " + " ".join(cell.rjust(13) for cell in cells))
    return lines


def _with(row: Mapping[str, Any], key: str, fraction: str, digits: int) -> str:
    value, share = row.get(key), row.get(fraction)
    if value is None:
        return "-"
    return f"{value:.{digits}f}" + ("" if share is None else f" ({share:.2f})")


def _peers(rows: Mapping[str, Any]) -> list[str]:
    lines = [
        f"  {r['engine']:14} {r['concurrency']:4} at once: TTFT {r['ttft_ms']:.0f}, step "
        f"{_with(r, 'step_ms', 'step_fraction', 2)}, decode "
        f"{r.get('decode_tokens_per_s') or 0:.0f} tokens/s, all {r['tokens_per_s']:.0f}"
        for r in rows.values()
    ]
    return ["TRANSFORMERS, ms", *lines] if rows else []


def _ceilings(report: Report) -> list[str]:
    found = report["ceilings"]
    if "bytes_per_s" not in found:
        return []
    rates = ", ".join(f"{n} {v / 1e12:.0f}" for n, v in found["flops_per_s"].items())
    launch, trip = found.get("ceilings/launch", {}), found.get("ceilings/round_trip", {})
    return [
        f"CEILINGS: copy {found['bytes_per_s'] / 1e12:.2f} TB/s; products {rates} TFLOP/s; launch "
        f"{launch.get('host_us', 0):.1f} us (in a graph {launch.get('device_us', 0):.1f}); reading "
        f"a number back {trip.get('item_us', 0):.1f} us"
    ]


def _profiles(rows: Mapping[str, Any]) -> list[str]:
    lines = ["WHERE STEPS GO"] if rows else []
    for name, r in rows.items():
        lines.append(
            f"  {name.removeprefix('profile/')}: {r['wall_ms_per_step']:.2f} ms a step, on the "
            f"device {r.get('device_ms_per_step', 0):.2f}, busy {r.get('busy_share', 0):.0%} of it,"
            f" {r.get('kernels_per_step', 0):.0f} kernels"
        )
        lines += [f"    {text}" for text in r["top"][:4]]
    return lines


def _linears(rows: Mapping[str, Any]) -> list[str]:
    """A line for each matrix, a column for each number of rows."""
    counts = sorted({int(count) for cases in rows.values() for count in cases})
    lines = ["LINEAR LAYERS by rows: share of the floor / microseconds"] if rows else []
    if rows:
        lines.append(" " * 16 + "".join(f"{count:>10}" for count in counts))
    for name, cases in rows.items():
        texts = [
            f"{case.get('fraction', 0):.2f}/{case['us']:.0f}" if case else "-"
            for case in (cases.get(str(count)) for count in counts)
        ]
        lines.append(
            f"  {name.removeprefix('kernels/linear/'):14}" + "".join(f"{t:>10}" for t in texts)
        )
    return lines


def _attention(rows: Mapping[str, Any]) -> list[str]:
    lines = ["ATTENTION, a layer: share of the floor (microseconds)"] if rows else []
    short = {
        name.removeprefix("kernels/attention/"): _case(case)
        for name, cases in rows.items()
        for case in cases.values()
    }
    return lines + _packed(f"{name} {text}" for name, text in short.items())


def _others(rows: Mapping[str, Any]) -> list[str]:
    lines = ["OTHER OPERATIONS: share of the floor (microseconds)"] if rows else []
    for cases in rows.values():
        lines += _packed(f"{name} {_case(case)}" for name, case in cases.items())
    return lines


def _case(case: Mapping[str, Any]) -> str:
    share = f"{case['fraction']:.2f} " if "fraction" in case else ""
    torch = f" {case['times_torch']:.2f}x torch" if "times_torch" in case else ""
    return f"{share}({case['us']:.0f}){torch}"


def _packed(texts: Iterable[str], width: int = 110) -> list[str]:
    lines: list[str] = []
    for text in texts:
        if lines and len(lines[-1]) + len(text) < width:
            lines[-1] += f"; {text}"
        else:
            lines.append(f"  {text}")
    return lines


def _budgets(rows: Mapping[str, Any], divided: Mapping[str, Any]) -> list[str]:
    lines = ["WITHIN A BUDGET of memory; in brackets the share of the floor"] if rows else []
    for r in rows.values():
        label = f"  {r['budget_gb']:g} GB {r['precision']} kv {r['kv']}: "
        if not r["fits"]:
            lines.append((label + "does not fit. " + r["why"])[:200])
        else:
            lines.append(
                f"{label}{r['users']} users, {r['tokens_per_s']:.0f} tokens/s, TTFT "
                f"{r['ttft_ms']:.0f} ms, step {r['step_ms'] or 0:.2f} ms"
            )
    return lines + [_divided(r) for r in divided.values() if r["is_divided"] or not r["fits"]]


def _divided(r: Mapping[str, Any]) -> str:
    label = f"  {r['budget_gb']:g} GB {r['precision']} divided: "
    if not r["fits"]:
        return (label + "does not fit. " + r["why"])[:200]
    share = f", {r['host_share']:.0%} of its floor the CPU's" if "host_share" in r else ""
    return (
        f"{label}{r['gpu_layers']} of {r['num_layers']} layers on the GPU, step "
        f"{_with(r, 'step_ms', 'step_fraction', 1)} ms{share}, TTFT of {r['num_input']} tokens "
        f"{_with(r, 'ttft_ms', 'ttft_fraction', 0)} ms"
    )


def _drafts(rows: Mapping[str, Any]) -> list[str]:
    lines = [
        f"  {r['precision']} {r['concurrency']:3} at once, {r['num_drafts']} drafts: "
        f"{_with(r, 'replayed_ms', 'fraction', 2)} a step ({r['replayed_draft_ms']:.2f} of the "
        f"host's for drafting), launched {r['launched_ms']:.2f} ({r['launched_draft_ms']:.2f})"
        for r in rows.values()
    ]
    return ["DRAFTS, ms; in brackets the share of the floor", *lines] if rows else []


def _arrivals(rows: Mapping[str, Any]) -> list[str]:
    lines = [
        f"  {r['offered_per_s']:.0f} offered a second: {r['requests_per_s']:.0f} served, "
        f"TTFT p99 {r['ttft_ms']:.1f} ms, ITL p99 {r['itl_ms']:.2f} ms ({r['num_requests']})"
        for r in rows.values()
    ]
    return ["SMALL MODEL, short requests at a rate", *lines] if rows else []


def _published(found: Mapping[str, Any]) -> list[str]:
    lines = ["PUBLISHED BY OTHERS, most tokens/s: share of their device's floor (data sheet)"]
    figures: Sequence[Mapping[str, Any]] = found["figures"]
    lines += _packed(
        f"{f['engine']}, {f['device']}, {f['precision']}, {f['num_input']}/{f['num_output']}: "
        f"{f['tokens_per_s']:.0f} ({f['fraction']:.2f})"
        for f in figures
    )
    return lines
