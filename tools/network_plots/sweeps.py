"""Groups measurements into lines."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .records import Decode

_Words = tuple[str, ...]


@dataclass(frozen=True)
class Axis:
    """A field of Decode as an axis, and how it is shown."""

    field: str
    label: str
    scale: float = 1.0
    of_links: bool = False

    def value(self, one: Decode) -> float | None:
        found = getattr(one, self.field)
        return None if found is None else self.scale * found


AXES = (
    Axis("nodes", "devices"),
    Axis("threads", "cores per device"),
    Axis("bytes_per_s", "bandwidth (Mbit/s)", 8e-6, of_links=True),
    Axis("latency_s", "one-way latency between devices (ms)", 1e3, of_links=True),
)
"""Those of figure 5."""


def latencies(collective: str) -> int:
    """Returns the least number of one-way latencies of an all-reduce."""
    return {"star": 2, "mesh": 1, "two-shot": 2}[collective]


def series_along(axis: Axis, decodes: Iterable[Decode]) -> tuple[str, dict[str, list[Decode]]]:
    """Settings that differ along the axis alone, two at least of each series, in its order.

    Returned with what all series have in common and, as their names, what sets them apart.
    """
    series: defaultdict[_Words, list[Decode]] = defaultdict(list)
    placed = [one for one in decodes if axis.value(one) is not None and (one.nodes > 1 or not axis.of_links)]
    for one in sorted(placed, key=lambda one: axis.value(one) or 0):
        series[_fixed(one, axis)].append(one)
    if axis.field == "nodes":
        _begin_alone(series)
    swept = {key: group for key, group in series.items() if _places(group, axis) > 1}
    shared, names = _names(list(swept))
    return shared, dict(zip(names, swept.values(), strict=True))


def _begin_alone(series: dict[_Words, list[Decode]]) -> None:
    """One device has no network, so it begins every series of several: the longest ones."""
    several = {key: group for key, group in series.items() if group[-1].nodes > 1}
    longest = max(map(len, several.values()), default=0)
    alone = [one for group in series.values() for one in group if one.nodes == 1]
    series.clear()
    for key, group in several.items():
        same = [one for one in alone if (one.model, one.threads) == (group[0].model, group[0].threads)]
        series[key] = same[:1] + group if len(group) == longest and group[0].nodes > 1 else group


def _places(group: Iterable[Decode], axis: Axis) -> int:
    return len({axis.value(one) for one in group})


def _fixed(one: Decode, axis: Axis) -> _Words:
    """All of a setting but its place on the axis and what was measured."""
    words = {
        "model": one.model,
        "nodes": _counted(one.nodes, "device"),
        "threads": _counted(one.threads, "core"),
        "bytes_per_s": _rate(one),
        "latency_s": "" if one.latency_s is None else f"{1e3 * one.latency_s:g} ms",
        "collective": one.collective,
        "wire": f"{one.wire} on the wire",
    }
    return tuple(word for field, word in words.items() if field != axis.field)


def _rate(one: Decode) -> str:
    if one.bytes_per_s:
        return f"{8e-6 * one.bytes_per_s:g} Mbit/s"
    return "" if one.latency_s is None else "no limit"


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _names(keys: Sequence[_Words]) -> tuple[str, list[str]]:
    """(what all have in common, what sets each apart)."""
    columns = list(zip(*keys, strict=True))
    common = [len(set(column)) == 1 for column in columns]
    shared = [column[0] for column, same in zip(columns, common, strict=True) if same]
    own = [[word for word, same in zip(key, common, strict=True) if not same] for key in keys]
    return _listed(shared), [_listed(words) for words in own]


def _listed(words: Iterable[str]) -> str:
    return ", ".join(word for word in words if word)
