"""Prints the findings of a soak."""

from collections.abc import Sequence

from tools.abusing.soak import PhaseRecord
from tpiedge.units import MIB

_HEAD = (
    f"{'phase':22}{'seconds':>8}{'exact':>7}{'refused':>8}{'broken':>7}{'unreach.':>9}{'wrong':>6}"
    f"{'median s':>9}{'max s':>8}{'settled s':>10}{'master MiB':>11}{'files':>6}  "
)


def table(records: Sequence[PhaseRecord]) -> str:
    return "\n".join([_HEAD, *map(line, records)])


def line(record: PhaseRecord) -> str:
    heard, stream = record.stream.judgements, record.stream
    master = record.holdings.get("master")
    held = f"{master.rss / MIB:11.0f}{master.files:6}" if master else f"{'-':>11}{'-':>6}"
    return (
        f"{record.name:22}{record.seconds:8.0f}{heard['exact']:7}{heard['refused']:8}{heard['broken off']:7}"
        f"{heard['unreachable']:9}{heard['wrong']:6}{stream.median_s:9.2f}{stream.longest_s:8.2f}"
        f"{record.settle_s:10.1f}{held}  {'FAULT' if record.faults else 'ok'}"
    )
