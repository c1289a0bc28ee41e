"""What the benches over a testbed have in common: links that are varied, and the round trip while it works."""

import contextlib
import statistics
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tpiedge.errors import TpiedgeError, UserError
from tpiedge.lab.testbed.description import Link
from tpiedge.lab.testbed.measuring import rtts_s
from tpiedge.lab.testbed.running import RunningTestbed, describe
from tpiedge.units import counted

_PAUSE_S = 0.2


@dataclass(frozen=True)
class LinkSetting:
    """Links of a testbed as they are to be: one-way latency from device to device, and rate. None: as they are; a rate
    of 0: without a limit."""

    latency_s: float | None = None
    bytes_per_s: float | None = None

    def __str__(self) -> str:
        latency = "" if self.latency_s is None else f"{1e3 * self.latency_s:g} ms"
        rate = "" if self.bytes_per_s is None else _rate_text(self.bytes_per_s)
        return ", ".join(filter(None, (latency, rate)))


AS_THEY_ARE = LinkSetting()


def latencies(text: str | None) -> list[float | None]:
    """Seconds, of "0.5,1,5" in milliseconds. Raises UserError."""
    return [None] if text is None else [value / 1e3 for value in _numbers("--latency", text, "ms")]


def rates(text: str | None) -> list[float | None]:
    """Bytes per second, of "100,300,none" in Mbit/s. Raises UserError."""
    if text is None:
        return [None]
    items = ["0" if item.strip() == "none" else item for item in text.split(",")]
    return [value * 1e6 / 8 for value in _numbers("--rate", ",".join(items), "Mbit/s")]


class Dial:
    """Changes the links of a testbed while it runs, and puts them back as they were. Two devices and more."""

    def __init__(self, testbed: RunningTestbed) -> None:
        self._testbed = testbed
        self._links = testbed.links
        self._latency_s = testbed.expected(*testbed.devices[:2]).latency_s

    @contextlib.contextmanager
    def turned(self, setting: LinkSetting) -> Iterator[None]:
        """Within the block latencies are in proportion to what they were, the first two devices `latency_s` apart.
        Raises UserError, ResourceError."""
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


class LoadedTrips:
    """Round trips between the first two devices, measured now and then while something else keeps the testbed busy."""

    def __init__(self, testbed: RunningTestbed) -> None:
        self._testbed = testbed
        self._over = threading.Event()
        self._found: list[float] = []
        self._failure: TpiedgeError | None = None

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Measure for as long as the block. Raises ResourceError at its end where nothing arrived."""
        thread = threading.Thread(target=self._measure, name="round-trips")
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
        if self._failure is not None:
            raise self._failure

    @property
    def median_s(self) -> float | None:
        """The median of all so far; None before the first."""
        return statistics.median(self._found) if self._found else None

    def _measure(self) -> None:
        first, second = self._testbed.devices[:2]
        try:
            while True:
                trips, _ = rtts_s(self._testbed, first, second, 5)
                self._found += trips
                if self._over.wait(_PAUSE_S):
                    return
        except TpiedgeError as error:
            self._failure = error


def check_devices(name: str, nodes: int) -> None:
    """Raises UserError unless the testbed has as many devices, and two at least."""
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
