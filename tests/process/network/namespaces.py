"""Machines with a network of their own: a network namespace each, on one bridge, which is in another one. Linux, root.

The namespaces have no names: they live as long as this process holds them open or a process runs in them, so nothing
is left behind however a test ends, and runs beside each other do not meet.
"""

import contextlib
import ctypes
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Self

MASTER = "master"
MACHINES = (MASTER, "worker1", "worker2")
BRIDGE = "bridge"

_CLONE_NEWNET = 0x40000000
_PREFIX = "10.213.7."
_BRIDGE_DEVICE = "br0"
_TABLE = "tpiedge"


def why_impossible(*commands: str) -> str | None:
    """Returns the reason why namespaces are impossible here, or lack one of `commands`."""
    if sys.platform != "linux":
        return "system: network namespaces are Linux's"
    if os.geteuid() != 0:
        return "root: network namespaces need it"
    missing = [command for command in ("ip", *commands) if shutil.which(command) is None]
    if missing:
        return f"namespaces: not installed: {', '.join(missing)} (packages iproute2, nftables)"
    try:
        os.close(new_namespace())
    except OSError as error:
        return f"namespaces: no network namespaces here: {error}"
    return None


class Namespaces:
    """A context manager. Each of the `machines` has the device eth0; on the bridge its port is named as the machine
    is."""

    def __init__(self, machines: Sequence[str] = MACHINES) -> None:
        self._machines = tuple(machines)
        self._fds: dict[str, int] = {}
        self._tables = itertools.count()
        self.addresses = {name: f"{_PREFIX}{number}" for number, name in enumerate((*machines, BRIDGE), 1)}

    def __enter__(self) -> Self:
        try:
            self._fds = {name: new_namespace() for name in (*self._machines, BRIDGE)}
            self._connect()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.popitem()[1])

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Moves this thread to the machine: its new sockets, threads and processes belong there."""
        with within(self._fds[name]):
            yield

    def run(self, name: str, *command: str, stdin: str = "") -> str:
        """A command on the machine `name`; its output. Fails with what it says."""
        with self.inside(name):
            ended = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, f"{' '.join(command)}: {ended.stderr}{stdin}"
        return ended.stdout

    @contextlib.contextmanager
    def dropping(self, name: str, *, sent: bool = True, received: bool = True) -> Iterator[None]:
        """Has the bridge drop packets of the machine silently."""
        ways = [f'iifname "{name}"'] * sent + [f'oifname "{name}"'] * received
        rules = "\n".join(f"{way} meta protocol ip drop;" for way in ways)
        with self._rules(BRIDGE, "bridge", f"chain f {{ type filter hook forward priority 0; {rules} }}"):
            yield

    @contextlib.contextmanager
    def losing(self, name: str, percent: int) -> Iterator[None]:
        """The bridge swallows so many of the packets to and from the machine, which ones is chance."""
        ways = (f'iifname "{name}"', f'oifname "{name}"')
        rules = "\n".join(f"{way} meta protocol ip numgen random mod 100 < {percent} drop;" for way in ways)
        with self._rules(BRIDGE, "bridge", f"chain f {{ type filter hook forward priority 0; {rules} }}"):
            yield

    @contextlib.contextmanager
    def partitioned(self, one: str, other: str) -> Iterator[None]:
        ways = ((one, other), (other, one))
        rules = "\n".join(f'iifname "{a}" oifname "{b}" meta protocol ip drop;' for a, b in ways)
        with self._rules(BRIDGE, "bridge", f"chain f {{ type filter hook forward priority 0; {rules} }}"):
            yield

    @contextlib.contextmanager
    def swallowing(self, name: str, longest: int) -> Iterator[None]:
        """Drops packets of more than `longest` bytes silently, as a tunnel with a smaller MTU does. Offloaded packets
        count before they are cut."""
        ways = (f'iifname "{name}"', f'oifname "{name}"')
        rules = "\n".join(f"{way} ip length > {longest} drop;" for way in ways)
        with self._rules(BRIDGE, "bridge", f"chain f {{ type filter hook forward priority 0; {rules} }}"):
            yield

    @contextlib.contextmanager
    def readdressed(self, name: str, address: str) -> Iterator[None]:
        """The machine has another address, as after a new lease; what it connected from the old one is dead."""
        old = self.addresses[name]
        self._replace_address(name, old, address)
        try:
            yield
        finally:
            self._replace_address(name, address, old)

    @contextlib.contextmanager
    def also_addressed(self, name: str, address: str) -> Iterator[None]:
        self._batch(name, f"addr add {address}/24 dev eth0")
        try:
            yield
        finally:
            self._batch(name, f"addr del {address}/24 dev eth0")

    @contextlib.contextmanager
    def forgetting(self, name: str, idle_s: int) -> Iterator[None]:
        """Drops the machine's connections, and new ones after `idle_s` of silence, as a router does that was
        restarted."""
        drops = "ct state invalid drop; ct state new tcp flags & syn == 0 drop;"
        chains = "\n".join(
            f"chain {hook} {{ type filter hook {hook} priority 0; iifname lo accept; oifname lo accept; {drops} }}"
            for hook in ("input", "output")
        )
        with self._rules(name, "inet", chains):
            self.run(name, "sysctl", "-qw", "net.netfilter.nf_conntrack_tcp_loose=0",
                     f"net.netfilter.nf_conntrack_tcp_timeout_established={idle_s}")  # fmt: skip
            yield

    @contextlib.contextmanager
    def resetting(self, name: str) -> Iterator[None]:
        """A firewall on the machine answers every TCP packet, of either direction, with a reset."""
        chains = [
            f"chain {hook} {{ type filter hook {hook} priority 0; iifname lo accept; oifname lo accept; "
            "tcp flags rst accept; meta l4proto tcp reject with tcp reset; }"
            for hook in ("input", "output")
        ]
        with self._rules(name, "inet", "\n".join(chains)):
            yield

    @contextlib.contextmanager
    def redirected(self, name: str, to: str, port: int, count: int) -> Iterator[None]:
        """Connections of the machine `name` to the master's `count` ports from `port` on go to the machine `to`."""
        target = f"ip daddr {self.addresses[MASTER]} tcp dport {port}-{port + count - 1}"
        chain = f"chain o {{ type nat hook output priority -100; {target} dnat ip to {self.addresses[to]}; }}"
        with self._rules(name, "inet", chain):
            yield

    @contextlib.contextmanager
    def slow(self, name: str, megabits: int) -> Iterator[None]:
        self.run(BRIDGE, "tc", "qdisc", "add", "dev", name, "root", "tbf", "rate", f"{megabits}mbit",
                 "burst", "128kb", "latency", "50ms")  # fmt: skip
        try:
            yield
        finally:
            self.run(BRIDGE, "tc", "qdisc", "del", "dev", name, "root")

    def received_bytes(self, name: str) -> int:
        (device,) = json.loads(self.run(name, "ip", "-s", "-j", "link", "show", "eth0"))
        return int(device["stats64"]["rx"]["bytes"])

    @contextlib.contextmanager
    def _rules(self, name: str, family: str, chains: str) -> Iterator[None]:
        table = f"{_TABLE}{next(self._tables)}"  # several faults at once do not share one
        self.run(name, "nft", "-f", "-", stdin=f"table {family} {table} {{\n{chains}\n}}\n")
        try:
            yield
        finally:
            self.run(name, "nft", "delete", "table", family, table)

    def _replace_address(self, name: str, old: str, new: str) -> None:
        self._batch(name, f"addr del {old}/24 dev eth0", f"addr add {new}/24 dev eth0")
        self.addresses[name] = new

    def _connect(self) -> None:
        bridge = f"/proc/{os.getpid()}/fd/{self._fds[BRIDGE]}"
        self._batch(BRIDGE, "link set lo up", f"link add {_BRIDGE_DEVICE} type bridge",
                    f"link set {_BRIDGE_DEVICE} up",
                    f"addr add {self.addresses[BRIDGE]}/24 dev {_BRIDGE_DEVICE}")  # fmt: skip
        for name in self._machines:
            self._batch(name, "link set lo up", f"link add eth0 type veth peer name {name} netns {bridge}",
                        f"addr add {self.addresses[name]}/24 dev eth0", "link set eth0 up")  # fmt: skip
            self._batch(BRIDGE, f"link set dev {name} master {_BRIDGE_DEVICE}", f"link set dev {name} up")

    def _batch(self, name: str, *commands: str) -> None:
        self.run(name, "ip", "-batch", "-", stdin="\n".join(commands))


@contextlib.contextmanager
def within(fd: int) -> Iterator[None]:
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(fd)
        try:
            yield
        finally:
            enter(before)
    finally:
        os.close(before)


def new_namespace() -> int:
    """A descriptor that keeps it alive. This thread stays where it is."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc().unshare(_CLONE_NEWNET))
        try:
            return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            enter(before)
    finally:
        os.close(before)


def enter(fd: int) -> None:
    _check(_libc().setns(fd, _CLONE_NEWNET))


def _libc() -> ctypes.CDLL:
    # Python has os.setns from 3.12 on only.
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
