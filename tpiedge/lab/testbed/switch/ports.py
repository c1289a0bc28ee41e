"""TAP devices: a network interface in a network namespace whose cable ends in a descriptor of this process. Linux.

An interface vanishes with its descriptor. It has no ARP and no IPv6: the switch knows where an address is, and nothing
is sent but what the device's programs send.
"""

import contextlib
import ctypes
import fcntl
import ipaddress
import os
import socket
import struct
import threading
from collections.abc import Callable
from typing import Final

from tpiedge.errors import UserError
from tpiedge.lab.testbed.switch.plan import Port

_CLONE_NEWNET: Final = 0x40000000
_TUNSETIFF: Final = 0x400454CA
_TUNSETOFFLOAD: Final = 0x400454D0
_IFF_TAP: Final = 0x0002
_IFF_NO_PI: Final = 0x1000
_IFF_VNET_HDR: Final = 0x4000
_TUN_F_CSUM: Final = 0x01
_TUN_F_TSO4: Final = 0x02
_TUN_F_TSO_ECN: Final = 0x08
_SIOCSIFFLAGS: Final = 0x8914
_SIOCSIFADDR: Final = 0x8916
_SIOCSIFNETMASK: Final = 0x891C
_SIOCSIFMTU: Final = 0x8922
_SIOCSIFHWADDR: Final = 0x8924
_SIOCSIFTXQLEN: Final = 0x8943
_IFF_UP: Final = 0x1
_IFF_NOARP: Final = 0x80
_ARPHRD_ETHER: Final = 1
_IFREQ_BYTES: Final = 40
# What the kernel holds for the switch to fetch: more than the largest window of a connection.
_QUEUE_PACKETS: Final = 8192


def open_port(port: Port) -> int:
    """Make the interface, give it its address and set it and `lo` up; its descriptor, which does not block.

    Raises UserError in words where that is not possible.
    """
    try:
        return _in_namespace(port.namespace, lambda: _make(port))
    except OSError as error:
        where = f"{port.interface} of {port.device} in {port.namespace}"
        raise UserError(
            f"the switch could not make the interface {where}: {error}; it needs root, /dev/net/tun and the namespace"
        ) from None


def offload_segmentation(tap: int, allowed: bool) -> None:
    """Whether the device may hand over many packets of a connection as one frame. Checksums it never computes."""
    fcntl.ioctl(tap, _TUNSETOFFLOAD, _TUN_F_CSUM | (_TUN_F_TSO4 | _TUN_F_TSO_ECN if allowed else 0))


def _in_namespace(path: str, work: Callable[[], int]) -> int:
    """`work` on a thread of its own in the namespace; this one stays where it is."""
    results: list[int] = []
    errors: list[OSError] = []

    def enter() -> None:
        try:
            with open(path, "rb") as namespace:
                # Python has os.setns from 3.12 on only.
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
            results.append(work())
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=enter, name="port")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _make(port: Port) -> int:
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(tap, _TUNSETIFF, _ifreq(port.interface, struct.pack("=H", flags)))
        offload_segmentation(tap, port.segmentation)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            _configure(control, port)
    except BaseException:
        os.close(tap)
        raise
    return tap


def _configure(control: socket.socket, port: Port) -> None:
    def demand(request: int, value: bytes, interface: str = port.interface) -> None:
        fcntl.ioctl(control, request, _ifreq(interface, value))

    with (
        contextlib.suppress(OSError),
        open(f"/proc/sys/net/ipv6/conf/{port.interface}/disable_ipv6", "w") as ipv6,
    ):
        ipv6.write("1")
    mac = bytes.fromhex(port.mac.replace(":", ""))
    demand(_SIOCSIFFLAGS, struct.pack("=H", _IFF_UP), "lo")
    demand(_SIOCSIFHWADDR, struct.pack("=H6s", _ARPHRD_ETHER, mac))
    demand(_SIOCSIFMTU, struct.pack("=i", port.mtu))
    demand(_SIOCSIFTXQLEN, struct.pack("=i", _QUEUE_PACKETS))
    demand(_SIOCSIFADDR, _inet(port.address))
    demand(_SIOCSIFNETMASK, _inet(str(ipaddress.IPv4Network(f"0.0.0.0/{port.prefix}").netmask)))
    demand(_SIOCSIFFLAGS, struct.pack("=H", _IFF_UP | _IFF_NOARP))


def _ifreq(interface: str, value: bytes) -> bytes:
    return struct.pack("16s24s", interface.encode(), value)[:_IFREQ_BYTES]


def _inet(address: str) -> bytes:
    return struct.pack("=HH4s", socket.AF_INET, 0, socket.inet_aton(address))
