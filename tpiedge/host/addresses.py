"""Addresses as people write them (HOST, HOST:PORT, [IPv6]:PORT), and the programs that hold ports."""

import contextlib
import errno
import ipaddress
import os
import re
import socket
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import psutil

from tpiedge.errors import ProtocolError, UserError

HTTP_PORT, CONTROL_PORT = 8080, 7070  # the defaults of a master
DATA_OFFSET, FILES_OFFSET, PAIRING_OFFSET, INSTALL_OFFSET = 1, 2, 3, 4  # the ports after the control port
PURPOSES = {
    0: "control",
    DATA_OFFSET: "tensors",
    FILES_OFFSET: "files",
    PAIRING_OFFSET: "pairing",
    INSTALL_OFFSET: "installation",
}

_HOST = r"[0-9A-Za-z](?:[0-9A-Za-z._-]{0,252}[0-9A-Za-z])?"
_ZONE = r"%[0-9A-Za-z._-]{1,64}"
_IPV6 = rf"(?=[^]:]*:[^]:]*:)[0-9A-Fa-f:.]+(?:{_ZONE})?"
_ADDRESS = re.compile(rf"(?:\[({_HOST}|{_IPV6})\]|({_HOST}))(?::([0-9]{{1,5}}))?|({_IPV6})", re.ASCII)
_ENDPOINT = re.compile(
    rf"tcp://(?:([0-9.]{{7,15}})|\[([0-9A-Fa-f:.]+)(?:{_ZONE})?\]):([0-9]{{1,5}})", re.ASCII
)
_SCOPE = re.compile(rf"{_ZONE}(?=\])", re.ASCII)


@dataclass(frozen=True, slots=True)
class Address:
    """A host (name, IPv4, or IPv6 without brackets) and its control port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def zmq(self) -> str:
        """The address as ZeroMQ writes it; `host` must be numeric."""
        return f"tcp://{self}"

    def beside(self, offset: int) -> "Address":
        return Address(self.host, self.port + offset)


def parse_address(text: str, default_port: int | None = None, default_host: str | None = None) -> Address:
    """Reads HOST:PORT. The defaults replace a missing part. Raises UserError."""
    found = _ADDRESS.fullmatch(text.strip())
    host, port = (found[1] or found[2] or found[4], found[3]) if found else ("", None)
    if port is None and host.isdigit():  # a resolver would take it for an address: 9000 is 0.0.35.40
        host, port = default_host or "", host
    number = int(port) if port else default_port or 0
    if not host or not 1 <= number <= 65535 - max(PURPOSES):
        raise UserError(f"not an address: {text[:80]!r}; write it like 192.168.1.20:7070 or [fe80::1]:7070")
    return Address(host, number)


def resolve(address: Address) -> Address:
    return resolve_all(address)[0]


def resolve_all(address: Address) -> tuple[Address, ...]:
    """Returns the numeric addresses, IPv4 first. Raises UserError for an unknown host."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise UserError(
            f"the host {address.host} is not known here: check the spelling, or give its IP address"
        ) from None
    # Masters listen on IPv4 unless told otherwise.
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return tuple(Address(_scoped(entry[4]), address.port) for entry in found)


def _scoped(address: tuple[Any, ...]) -> str:
    """Returns a socket's host. Raises UserError for a link-local address without interface."""
    host = str(address[0])
    if len(address) < 4 or "%" in host or not ipaddress.IPv6Address(host).is_link_local:
        return host
    if not address[3]:
        raise UserError(
            f"{host} is a link-local address, which needs an interface: write it like {host}%eth0"
        )
    return f"{host}%{socket.if_indextoname(address[3])}"


def outgoing_host() -> str | None:
    """Returns the address at which other machines probably reach this one, if any."""
    if (own := _own_address("192.0.2.1", 9)) is not None:
        return str(own[0])
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    for name, records in psutil.net_if_addrs().items():
        for record in records if name in up else ():
            if record.family == socket.AF_INET:
                address = ipaddress.IPv4Address(record.address)
                if not (address.is_loopback or address.is_link_local):
                    return str(address)
    return None


def _own_address(host: str, port: int) -> tuple[Any, ...] | None:
    """Returns this machine's address on the route to `host`. Sends nothing."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            own: tuple[Any, ...] = probe.getsockname()
            return own
    except OSError:
        return None


def own_names() -> frozenset[str]:
    """Returns this machine's names in lower case. Blocks on the resolver."""
    name = socket.gethostname().lower()
    return frozenset({name, f"{name.partition('.')[0]}.local", socket.getfqdn().lower()} - {""})


def own_networks() -> tuple[ipaddress.IPv4Network, ...]:
    return tuple(
        ipaddress.IPv4Network(f"{record.address}/{record.netmask}", strict=False)
        for found in psutil.net_if_addrs().values()
        for record in found
        if record.family == socket.AF_INET and record.netmask
    )


def check_endpoint(text: str, claim: str = "it says that it listens") -> str:
    """Returns `text` if it is tcp://IP:PORT. Raises ProtocolError, which begins with `claim`."""
    found = _ENDPOINT.fullmatch(text)
    try:
        if found is None or not 1 <= int(found[3]) <= 65535:
            raise ValueError
        ip = ipaddress.IPv4Address(found[1]) if found[1] else ipaddress.IPv6Address(found[2])
        if ip.is_multicast:
            raise ValueError
    except ValueError:
        raise ProtocolError(f"{claim} at {text[:80]!r}, which is no address") from None
    return text


def endpoint_at(source: str, endpoint: str) -> str:
    """Returns `endpoint` with its IP replaced by `source`, unless `source` is ""."""
    if not source:
        return endpoint
    # No node may direct others elsewhere.
    ip = ipaddress.ip_address(source)
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return Address(str(mapped or ip), int(endpoint.rpartition(":")[2])).zmq


def listening_address(control_address: str) -> str:
    """Returns the address at which a worker's node listens: tcp://IP:*."""
    host, _, port = control_address.removeprefix("tcp://").rpartition(":")
    own = _own_address(host.removeprefix("[").removesuffix("]"), int(port))
    if own is None:
        return "tcp://127.0.0.1:*"
    return f"tcp://{own[0]}:*" if len(own) == 2 else f"tcp://[{_scoped(own)}]:*"


def data_endpoint(endpoint: str, control_address: str) -> str:
    """Returns a node's `endpoint` for use by other nodes. A wildcard host, or a missing IPv6 zone, is taken from
    `control_address`."""
    for anywhere in ("tcp://0.0.0.0:", "tcp://[::]:"):
        if endpoint.startswith(anywhere):
            return f"{control_address.rpartition(':')[0]}:{endpoint.removeprefix(anywhere)}"
    scope = _SCOPE.search(control_address)
    return _SCOPE.sub(scope[0], endpoint) if scope else endpoint


def port_state(port: int, host: str = "0.0.0.0") -> str:
    """Returns 'free', 'in use' or the system's reason. `host` must be numeric."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: only a listener counts
        try:
            probe.bind(socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0][4])
            return "free"
        except OSError as error:
            return "in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)


def holder(port: int) -> str:
    """Returns the listener's name, like 'nginx, pid 123' or 'another program'."""
    found = "another program"
    with contextlib.suppress(psutil.Error, OSError):  # for another user's process
        pids = {
            one.pid
            for one in psutil.net_connections("tcp")
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port and one.pid
        }
        if pids:
            process = psutil.Process(min(pids))
            found = f"{process.name()}, pid {process.pid}"
            for one in (process, *process.parents()):  # a node is a descendant of its verb
                for word, verb in pairwise(one.cmdline()):
                    if os.path.basename(word) == "tpiedge" and verb.isalpha():
                        return f"another tpiedge {verb}, pid {one.pid}"
    return found
