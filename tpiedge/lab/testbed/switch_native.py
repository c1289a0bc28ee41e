"""Calls the switch's native library (`native/`). Needs Linux."""

import ctypes
import functools
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tpiedge.errors import ResourceError, UserError
from tpiedge.lab.testbed.switch import SwitchLink, SwitchPlan
from tpiedge.native_code import OtherVersion, Signatures, find_library, load_library

_ABI: Final = 1
_CHANGE_TIMEOUT_MS: Final = 2000
_NS: Final = 1e9

# In packets and bytes of IP: a frame that stands for many packets counts as many.
LINK_COUNTERS: Final = ("packets", "bytes", "dropped", "lost")
# In frames. `foreign`: not IPv4 from one device to another; `crowded_out`: too much in flight; `undelivered`: the
# target's interface is down.
TOTALS: Final = ("received", "delivered", "foreign", "crowded_out", "undelivered", "late_ns", "latest_ns")

_int, _size, _pointer = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p
_SIGNATURES: Final[Signatures] = {
    "tpiedge_switch_open": ([_pointer, _size, _pointer, _size, _pointer, ctypes.c_uint64], _pointer),
    "tpiedge_switch_run": ([_pointer], _int),
    "tpiedge_switch_stop": ([_pointer], None),
    "tpiedge_switch_change": ([_pointer, _size, _pointer, _size], _int),
    "tpiedge_switch_link_counters": ([_pointer, _size, _pointer], None),
    "tpiedge_switch_totals": ([_pointer, _pointer], None),
    "tpiedge_switch_close": ([_pointer], None),
}


class _Link(ctypes.Structure):
    """The struct LinkSettings in native/link.h."""

    _fields_ = (
        ("latency_ns", _size),
        ("jitter_ns", _size),
        ("loss", ctypes.c_double),
        ("bytes_per_s", ctypes.c_double),
        ("queue_bytes", _size),
    )


# Not of c_char: that ends at the first zero.
_Address, _Mac = ctypes.c_uint8 * 4, ctypes.c_uint8 * 8


class _SwitchPort(ctypes.Structure):
    """The struct PortSettings in native/switch.h."""

    _fields_ = (("tap", ctypes.c_int32), ("address", _Address), ("mac", _Mac))


@functools.cache
def switch_library() -> ctypes.CDLL:
    """Returns the library. Raises UserError if it cannot be loaded."""
    path = find_library(Path(__file__).parent)
    if path is None:
        raise UserError(
            "the switch needs a C++ compiler when tpiedge is installed, and there was none: install g++, then "
            "tpiedge again"
        )
    try:
        return load_library(path, "tpiedge_switch_abi", _ABI, _SIGNATURES)
    except OtherVersion:
        raise UserError(
            f"the switch in {path.name} is of another version of tpiedge: install tpiedge again"
        ) from None
    except OSError as error:
        raise UserError(
            f"the switch cannot be loaded ({error}); it runs on Linux only: install tpiedge there"
        ) from None


class NativeSwitch:
    """A switch over the descriptors `taps`. The caller closes the descriptors after the switch. `run` blocks without
    the GIL. During `run`, other threads may call all methods except `close`."""

    def __init__(self, plan: SwitchPlan, taps: Sequence[int]) -> None:
        self._library = switch_library()
        self._links = {link.name: index for index, link in enumerate(plan.links)}
        links = (_Link * len(plan.links))(*map(_settings, plan.links))
        ports = (_SwitchPort * len(plan.ports))(
            *(
                _SwitchPort(tap, _Address(*socket.inet_aton(port.address)), _Mac(*mac_of(number)))
                for number, (tap, port) in enumerate(zip(taps, plan.ports, strict=True))
            )
        )
        numbers = _paths(plan)
        paths = (ctypes.c_int32 * len(numbers))(*numbers)
        self._handle = self._library.tpiedge_switch_open(
            links, len(links), ports, len(ports), paths, plan.seed
        )
        if not self._handle:
            raise ResourceError(
                "the switch got neither memory nor descriptors: raise 'ulimit -n' and 'ulimit -v'"
            )

    def run(self) -> None:
        if (number := self._library.tpiedge_switch_run(self._handle)) != 0:
            raise ResourceError(f"the switch could not wait for packets (error {number})")

    def stop(self) -> None:
        self._library.tpiedge_switch_stop(self._handle)

    def change(self, link: SwitchLink) -> None:
        """Changes a link. Blocks until the change is in force."""
        index, settings = self._links[link.name], ctypes.byref(_settings(link))
        if not self._library.tpiedge_switch_change(self._handle, index, settings, _CHANGE_TIMEOUT_MS):
            raise ResourceError(f"the switch did not take the change of link {link.name!r} within 2 s")

    def counters(self) -> dict[str, Any]:
        """Returns "links" (LINK_COUNTERS by link name) and "totals" (TOTALS)."""
        values = (_size * len(LINK_COUNTERS))()
        links = {}
        for name, index in self._links.items():
            self._library.tpiedge_switch_link_counters(self._handle, index, values)
            links[name] = dict(zip(LINK_COUNTERS, values, strict=True))
        totals = (_size * len(TOTALS))()
        self._library.tpiedge_switch_totals(self._handle, totals)
        return {"links": links, "totals": dict(zip(TOTALS, totals, strict=True))}

    def close(self) -> None:
        if self._handle:
            self._library.tpiedge_switch_close(self._handle)
            self._handle = None


def mac_of(number: int) -> bytes:
    return b"\x02tpi" + (number + 1).to_bytes(2, "big")


def _settings(link: SwitchLink) -> _Link:
    rate = link.bytes_per_s or 0.0
    return _Link(
        round(link.latency_s * _NS), round(link.jitter_s * _NS), link.loss, rate, int(link.queue_bytes)
    )


def _paths(plan: SwitchPlan) -> list[int]:
    """Returns, for each pair, the number of links and their indices. -1 means no path."""
    numbers: list[int] = []
    for source in plan.ports:
        for target in plan.ports:
            path = plan.paths.get(source.device, {}).get(target.device)
            numbers += [-1] if path is None else [len(path), *path]
    return numbers
