"""Requests, figures and link settings that all benches share."""

import contextlib
import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tpiedge.errors import UserError
from tpiedge.lab.testbed.description import Link
from tpiedge.lab.testbed.running import RunningTestbed, describe
from tpiedge.local.cluster import Answer, LocalCluster, collect
from tpiedge.local.prepare import PreparedModel
from tpiedge.units import counted
from tpiedge.wire.requests import GenerationRequest


def check_lengths(model: PreparedModel, prompt_tokens: int, tokens: int) -> None:
    if prompt_tokens + tokens > model.config.context_tokens:
        raise UserError(
            f"--prompt-tokens and --tokens exceed the model's {model.config.context_tokens} positions"
        )


def check_names(flag: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Raises UserError unless all `given` names are `known`."""
    for item in given:
        if item not in known:
            raise UserError(f"{flag}: {item!r} is none of {', '.join(known)}")


def integers(flag: str, text: str, low: int, high: int) -> list[int]:
    """Parses '2,4' as [2, 4]. Raises UserError."""
    try:
        values = [int(item) for item in text.split(",")]
    except ValueError:
        raise UserError(f"{flag} {text!r} is not a list of numbers like 2,4") from None
    if any(not low <= value <= high for value in values):
        raise UserError(f"{flag} {text!r} is out of range: {low} to {high}")
    return values


def ask(
    cluster: LocalCluster, model: PreparedModel, prompt_tokens: int, tokens: int, *, keep: bool
) -> Answer:
    """Sends a greedy request that ignores EOS. `keep`: whether later requests may use the prompt's KV."""
    ids = prompt_ids(prompt_tokens, model.config.vocab_size)
    request = GenerationRequest(f"bench-{tokens}-{keep}", ids, tokens, ignore_eos=True, keep_prefix=keep)
    return collect(cluster, request, None, (), lambda _text: None)


def prompt_ids(count: int, vocab_size: int) -> tuple[int, ...]:
    """Returns fixed ids that look random."""
    return tuple((7919 * index + 13) % vocab_size for index in range(count))


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def milliseconds(found: dict[str, float], digits: int = 1) -> str:
    median, low, high = (1e3 * found[name] for name in ("median", "min", "max"))
    return f"{median:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


@dataclass(frozen=True)
class LinkSetting:
    """A change of a testbed's links. `latency_s`: the latency between the first two devices. All latencies change in
    proportion. `bytes_per_s`: each link's rate; 0 means no limit. A value of None changes nothing."""

    latency_s: float | None = None
    bytes_per_s: float | None = None

    def __str__(self) -> str:
        latency = "" if self.latency_s is None else f"{1e3 * self.latency_s:g} ms"
        rate = "" if self.bytes_per_s is None else _rate_text(self.bytes_per_s)
        return ", ".join(filter(None, (latency, rate)))

    def over(self, testbed: RunningTestbed | None) -> tuple[float | None, float | None]:
        """Returns (latency, rate) between the first two devices of `testbed` with this setting applied. None means
        unknown, or a rate without a limit."""
        latency_s, rate = self.latency_s, self.bytes_per_s
        if testbed is not None:
            way = testbed.expected(*testbed.devices[:2])
            latency_s = way.latency_s if latency_s is None else latency_s
            rate = way.bytes_per_s if rate is None else rate
        return latency_s, rate or None


AS_THEY_ARE = LinkSetting()


def link_settings(latency: str | None, rate: str | None, testbed: str | None) -> list[LinkSetting]:
    """Returns all combinations of latencies like '0.5,1' (ms) and rates like '100,none' (Mbit/s). Raises UserError."""
    pairs = itertools.product(latencies(latency), rates(rate))
    found = list(dict.fromkeys(LinkSetting(*pair) for pair in pairs))
    if testbed is None and found != [AS_THEY_ARE]:
        raise UserError("--latency and --rate vary the links of a testbed: give --testbed")
    return found


def latencies(text: str | None) -> list[float | None]:
    """Parses '0.5,1' (milliseconds) as seconds. Raises UserError."""
    return [None] if text is None else [value / 1e3 for value in _numbers("--latency", text, "ms")]


def rates(text: str | None) -> list[float | None]:
    """Parses '100,none' (Mbit/s) as [12_500_000.0, 0] (bytes per second). Raises UserError."""
    if text is None:
        return [None]
    items = ["0" if item.strip() == "none" else item for item in text.split(",")]
    return [value * 1e6 / 8 for value in _numbers("--rate", ",".join(items), "Mbit/s")]


class Dial:
    """Changes the links of a running testbed for a `with` block."""

    def __init__(self, testbed: RunningTestbed) -> None:
        self._testbed = testbed
        self._links = testbed.links
        self._latency_s = testbed.expected(*testbed.devices[:2]).latency_s

    @contextlib.contextmanager
    def turned(self, setting: LinkSetting) -> Iterator[None]:
        """Applies `setting` during the block. Raises UserError, ResourceError."""
        if setting == AS_THEY_ARE:
            yield
            return
        if setting.latency_s and not self._latency_s:
            raise UserError(f"the links of {self._testbed.name} have no latency that could be varied")
        wanted = {
            name: (self._changed(setting, up), self._changed(setting, down))
            for name, (up, down) in self._links.items()
        }
        try:
            self._testbed.set_all(wanted)
            yield
        finally:
            self._testbed.set_all(self._links)

    def _changed(self, setting: LinkSetting, link: Link) -> Link:
        if setting.latency_s is not None:
            factor = setting.latency_s / self._latency_s if self._latency_s else 0.0
            link = replace(link, latency_s=link.latency_s * factor)
        if setting.bytes_per_s is not None:
            link = replace(link, bytes_per_s=setting.bytes_per_s or None)
        return link


def check_devices(name: str, nodes: int) -> None:
    """Raises UserError if the testbed has fewer than two devices or fewer than `nodes`."""
    devices = len(describe(name).devices)
    if devices < max(2, nodes):
        raise UserError(f"the testbed {name} has {counted(devices, 'device')}: {max(2, nodes)} are needed")


def _numbers(flag: str, text: str, unit: str) -> list[float]:
    try:
        values = [float(item) for item in text.split(",")]
    except ValueError:
        raise UserError(f"{flag} {text!r} is not a list of numbers in {unit} like 1,3,5") from None
    if any(not 0 <= value < 1e6 for value in values):
        raise UserError(f"{flag} {text!r} is out of range: 0 to 1000000 {unit}")
    return values


def _rate_text(bytes_per_s: float) -> str:
    return f"{bytes_per_s * 8 / 1e6:g} Mbit/s" if bytes_per_s else "no limit"
