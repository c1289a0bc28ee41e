"""The result of a run as a record and in words."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tools.nemesis.readers import Found
from tpiedge.lab.bench.serve_figures import percentile
from tpiedge.master.history import PLANNED

#: The design's bounds: reading and prefill come on top. What moves in place of a prefill takes no longer.
_NOTICE_S, _STAND_S = 2.0, 1.5


def pauses(
    found: Found, changes: Sequence[tuple[float, str]], reading_s: float, prefill_s: float
) -> dict[str, Any]:
    """Sums up pauses, in all and by cause. A pause counts from the last of `changes` (time and cause, the beginning
    first) to the next token; that of a better plan counts from its own beginning and has less time."""
    planned_bound = _STAND_S + reading_s + prefill_s
    bound = _NOTICE_S + planned_bound
    start = changes[0][0]
    by_kind: dict[str, list[float]] = {}
    told = []
    for pause in sorted(found.pauses, key=lambda one: one.began):
        if PLANNED in pause.why:
            when, what = pause.began, PLANNED
        else:
            when, what = max(one for one in changes if one[0] <= pause.began)
        by_kind.setdefault(what, []).append(pause.ended - when)
        told.append(f"{when - start:.1f} s {what}, {pause.ended - when:.1f} s: {pause.why}")
    return {
        "changes": [f"{when - start:.1f} s {what}" for when, what in sorted(changes)],
        "pauses": told,
        "bound_s": round(bound, 2),
        "planned_bound_s": round(planned_bound, 2),
        "seconds_to_the_next_token": _tail(
            [seconds for what, several in by_kind.items() if what != PLANNED for seconds in several], bound
        ),
        "seconds_by_kind": {
            name: _tail(by_kind[name], planned_bound if name == PLANNED else bound)
            for name in sorted(by_kind)
        },
    }


def _tail(seconds: Sequence[float], bound: float) -> dict[str, float] | None:
    if not seconds:
        return None
    return {
        "pauses": len(seconds),
        "median": round(statistics.median(seconds), 2),
        "p95": round(percentile(seconds, 95), 2),
        "max": round(max(seconds), 2),
        "beyond": sum(one > bound for one in seconds),
    }


def say(record: Mapping[str, Any]) -> str:
    kinds = ", ".join(f"{count} x {name}" for name, count in sorted(record["by_kind"].items()))
    lines = [
        f"{record['kills']} faults: {kinds}",
        f"{record['answers']} answers with {record['tokens']} tokens, {record['paused_answers']} of them paused, "
        f"{record['asked_again']} times asked again; "
        f"{len(record['wrong'])} wrong, {len(record['lost'])} lost, {len(record['left_over'])} left over",
        f"seconds from what broke, or was mended, to the next token; beyond: more than {record['bound_s']} s, "
        f"{record['planned_bound_s']} s for a plan that begins in place of one that serves",
        f"  {'':20}{'pauses':>8}{'median':>8}{'p95':>8}{'max':>8}{'beyond':>8}",
    ]
    for name, tail in {
        "all but plans": record["seconds_to_the_next_token"],
        **record["seconds_by_kind"],
    }.items():
        if tail:
            lines.append(f"  {name:20}" + "".join(f"{value:8}" for value in tail.values()))
    lines += [f"ended by itself, and was started again: {words}" for words in record["ended"][:20]]
    lines += [f"FAULT: {fault}" for fault in record["faults"][:20]]
    return "\n".join(lines)
