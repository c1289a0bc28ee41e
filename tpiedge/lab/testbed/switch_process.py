"""The switch's process: `python -m tpiedge.lab.testbed.switch_process SOCKET`. Needs Linux.

The process reads a SwitchPlan from standard input, makes the devices' interfaces and prints `ready`. Then it forwards
packets and answers on SOCKET until SIGTERM or SIGINT. After a failure, it prints `error: ...` and ends with status 1.

Each interface is a TAP device in its device's namespace. ARP and IPv6 are off, so only programs send packets.
"""

import contextlib
import errno
import fcntl
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tpiedge.errors import TpiedgeError, UserError
from tpiedge.lab.testbed.isolation import inside
from tpiedge.lab.testbed.switch import Port, SwitchPlan, listening
from tpiedge.lab.testbed.switch_native import NativeSwitch, mac_of

INTERFACE: Final = "eth0"
_ENDS = (signal.SIGTERM, signal.SIGINT)
_TUNSETIFF: Final = 0x400454CA
_TUNSETOFFLOAD: Final = 0x400454D0
_TAP_FLAGS: Final = 0x0002 | 0x1000 | 0x4000  # IFF_TAP, IFF_NO_PI, IFF_VNET_HDR
_CHECKSUMS: Final = 0x01
_SEGMENTS: Final = 0x02 | 0x08  # TSO4, and with ECN
_SIOCSIFFLAGS: Final = 0x8914
_SIOCSIFADDR: Final = 0x8916
_SIOCSIFNETMASK: Final = 0x891C
_SIOCSIFHWADDR: Final = 0x8924
_SIOCSIFTXQLEN: Final = 0x8943
_IFF_UP: Final = 0x1
_IFF_NOARP: Final = 0x80
_ARPHRD_ETHER: Final = 1
# Packets that the kernel holds for the switch: more than the largest window of a connection.
_QUEUE_PACKETS: Final = 8192


class Switch:
    """Makes the interfaces, and forwards packets in a thread. A context manager."""

    def __init__(self, plan: SwitchPlan) -> None:
        self._plan = plan
        self._links = {link.name: link for link in plan.links}
        self._stack = contextlib.ExitStack()
        self._taps: list[int] = []
        #: The error that ended the forwarding thread.
        self.error: TpiedgeError | None = None

    def __enter__(self) -> "Switch":
        with contextlib.ExitStack() as stack:
            for number, port in enumerate(self._plan.ports):
                self._taps.append(stack.enter_context(_open_port(port, mac_of(number))))
            self._allow_segmentation()
            self._native = NativeSwitch(self._plan, self._taps)
            stack.callback(self._native.close)
            thread = threading.Thread(target=self._run, name="switch")
            thread.start()
            stack.callback(thread.join)
            stack.callback(self._native.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answers a request. Raises UserError for an unknown request."""
        match request["do"]:
            case "counters":
                return self._native.counters()
            case "set":
                changed = [replace(self._links[name], **new) for name, new in request["links"].items()]
                self._links |= {link.name: link for link in changed}
                self._allow_segmentation()
                for link in changed:
                    self._native.change(link)
                return {}
        raise UserError("the request must have 'do': 'counters' or 'set'")

    def _run(self) -> None:
        try:
            self._native.run()
        except TpiedgeError as error:
            self.error = error
            os.kill(os.getpid(), signal.SIGTERM)

    def _allow_segmentation(self) -> None:
        """Allows frames of up to 64 KiB to devices whose paths are all lossless."""
        links = tuple(self._links.values())
        for tap, port in zip(self._taps, self._plan.ports, strict=True):
            paths = self._plan.paths.get(port.device, {}).values()
            # Packets of a lossy path must be lost one by one.
            lossy = any(links[index].loss > 0 for path in paths for index in path)
            try:
                fcntl.ioctl(tap, _TUNSETOFFLOAD, _CHECKSUMS | (0 if lossy else _SEGMENTS))
            except OSError as error:
                if error.errno != errno.EBADFD:  # the interface is gone, with its device: the others go on
                    raise


@contextlib.contextmanager
def _open_port(port: Port, mac: bytes) -> Iterator[int]:
    """Makes an interface and yields its nonblocking descriptor."""
    try:
        with inside(Path(port.namespace)):
            tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.ioctl(tap, _TUNSETIFF, _ifreq(struct.pack("=H", _TAP_FLAGS)))
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
                    _configure(control, port.address, mac)
            except BaseException:
                os.close(tap)
                raise
    except OSError as error:
        raise UserError(
            f"the switch could not make the interface {INTERFACE} of {port.device} in {port.namespace}: {error}; it "
            "needs root, /dev/net/tun and the namespace"
        ) from None
    try:
        yield tap
    finally:
        os.close(tap)


def _configure(control: socket.socket, address: str, mac: bytes) -> None:
    with contextlib.suppress(OSError), open(f"/proc/sys/net/ipv6/conf/{INTERFACE}/disable_ipv6", "w") as ipv6:
        ipv6.write("1")
    fcntl.ioctl(control, _SIOCSIFFLAGS, _ifreq(struct.pack("=H", _IFF_UP), "lo"))
    for request, value in (
        (_SIOCSIFHWADDR, struct.pack("=H6s", _ARPHRD_ETHER, mac)),
        (_SIOCSIFTXQLEN, struct.pack("=i", _QUEUE_PACKETS)),
        (_SIOCSIFADDR, _inet(address)),
        (_SIOCSIFNETMASK, _inet("255.255.0.0")),
        (_SIOCSIFFLAGS, struct.pack("=H", _IFF_UP | _IFF_NOARP)),
    ):
        fcntl.ioctl(control, request, _ifreq(value))


def _ifreq(value: bytes, interface: str = INTERFACE) -> bytes:
    return struct.pack("16s24s", interface.encode(), value)


def _inet(address: str) -> bytes:
    return struct.pack("=HH4s", socket.AF_INET, 0, socket.inet_aton(address))


def main(arguments: list[str]) -> int:
    try:
        if len(arguments) != 1:
            raise UserError("the switch takes one argument, the path of its socket")
        plan = SwitchPlan.from_json(sys.stdin.readline())
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)  # also in the threads that start from here on
        with Switch(plan) as switch, listening(Path(arguments[0]), switch.answer):
            print("ready", flush=True)  # noqa: T201
            signal.sigwait(_ENDS)
        if switch.error is not None:
            raise switch.error
    except TpiedgeError as error:
        print(f"error: {' '.join(str(error).split())}", flush=True)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
