"""The commands of a testbed on the kernel's own network: namespaces as routers, veth pairs as links, tc for what they
do to packets.

A device has the address that it has on the switch too, as one of its own (/32); what lies beyond its interface is
routed. Each member's interface towards its uplink is `eth0` on a device and `uplink` on a router; the router's end is
named as the member is.
"""

import contextlib
import math
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from tpiedge.errors import ResourceError, TpiedgeError
from tpiedge.lab.testbed.description import Device, Link, Router
from tpiedge.lab.testbed.namespaces import module_processes, run_inside, scratch_namespace
from tpiedge.lab.testbed.state import Network, TestbedState, folder_of, socket_of
from tpiedge.lab.testbed.switch.control import SwitchClient
from tpiedge.lab.testbed.topology import INTERFACE, Topology, queue_bytes

MemberCommand = tuple[str, tuple[str, ...]]
"""The member in whose namespace it runs, and its words."""

_UPLINK = "uplink"
_FORWARD = ("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
_NO_LIMIT = 12.5e9
_PACKET = 1500
_MOST_PACKETS = 100_000
#: At least what a kernel timer's tick lets through at once, and one burst of TSO.
_BURST_S = 0.001
_LEAST_BURST = 1 << 16


def network_commands(topology: Topology, namespaces: Mapping[str, Path]) -> Iterator[MemberCommand]:
    """Links, addresses and routes of all members, then what the links do."""
    for router in topology.description.routers:
        yield router.name, _FORWARD
    for member in topology.description.members:
        if member.uplink is not None:
            yield from _cable(topology, member, namespaces[member.uplink])
    for router in topology.description.routers:
        yield from _routes(topology, router)
    for member in topology.description.members:
        yield from (
            command for command in link_commands(topology, member.name) if "noqueue" not in command[1]
        )


def link_commands(topology: Topology, name: str) -> Iterator[MemberCommand]:
    """What the two directions of the link of a member do, instead of what they did."""
    member = topology.members[name]
    if member.uplink is None:
        return
    yield member.name, shaping(interface_of(member), member.up)
    yield member.uplink, shaping(member.name, member.down)


def shaping(interface: str, link: Link) -> tuple[str, ...]:
    """The tc command of one direction, whatever it was before.

    netem with a rate counts from the end of the packet before, so that jitter does not change their order: a link with
    jitter always has one. tbf is for links that have a rate and nothing else.
    """
    root = ("tc", "qdisc", "replace", "dev", interface, "root")
    rate = link.bytes_per_s
    if link.latency_s or link.jitter_s or link.loss:
        return (*root, "netem", "limit", str(_packets(link)), *_netem(link))
    if rate is not None:
        burst = max(_LEAST_BURST, math.ceil(rate * _BURST_S))
        queue = queue_bytes(rate)
        return (*root, "tbf", "rate", f"{round(rate * 8)}bit", "burst", f"{burst}b", "limit", f"{queue}b")
    return (*root, "noqueue")


def interface_of(member: Router | Device) -> str:
    """Towards its uplink."""
    return INTERFACE if isinstance(member, Device) else _UPLINK


def _netem(link: Link) -> Iterator[str]:
    # netem's jitter is to both sides of the delay.
    yield from ("delay", _us(link.latency_s + link.jitter_s / 2))
    if link.jitter_s:
        yield _us(link.jitter_s / 2)
    if link.loss:
        yield from ("loss", f"{link.loss * 100:g}%")
    rate = link.bytes_per_s or (_NO_LIMIT if link.jitter_s else None)
    if rate is not None:
        yield from ("rate", f"{round(rate * 8)}bit")


def _us(seconds: float) -> str:
    return f"{round(seconds * 1e6)}us"


def _packets(link: Link) -> int:
    """What is under way, and what waits for the rate."""
    if link.bytes_per_s is None:
        return _MOST_PACKETS
    under_way = link.bytes_per_s * (link.latency_s + link.jitter_s)
    return min(_MOST_PACKETS, math.ceil((under_way + queue_bytes(link.bytes_per_s)) / _PACKET))


def _cable(topology: Topology, member: Router | Device, namespace: Path) -> Iterator[MemberCommand]:
    """The cable from the member to its uplink, made in the uplink's namespace."""
    interface, uplink = interface_of(member), member.uplink or ""
    own, above = topology.addresses[member.name], topology.addresses[uplink]
    ends = ((member.name, interface, own), (uplink, member.name, above))
    peer = ("peer", "name", member.name, "netns", str(namespace))
    yield member.name, ("ip", "link", "add", "name", interface, "type", "veth", *peer)
    if isinstance(member, Device) and not topology.lossless(member.name):  # packets get lost one by one
        yield member.name, ("ip", "link", "set", "dev", interface, "gso_max_segs", "1")
    for place, device, address in ends:
        yield place, ("ip", "link", "set", "dev", device, "up")
        yield place, ("ip", "addr", "add", f"{address}/32", "dev", device)
    yield member.name, ("ip", "route", "add", "default", "via", above, "dev", interface, "onlink")


def _routes(topology: Topology, router: Router) -> Iterator[MemberCommand]:
    """Downwards: what lies below each member that is connected to it. Upwards there is the default route."""
    for name in topology.members:
        ascent = topology.ascent(name)
        if name == router.name or router.name not in ascent:
            continue
        child = ascent[ascent.index(router.name) - 1]
        via = () if child == name else ("via", topology.addresses[child])
        onlink = ("onlink",) if via else ()
        yield (
            router.name,
            ("ip", "route", "add", f"{topology.addresses[name]}/32", *via, "dev", child, *onlink),
        )


_SWITCH_MODULE = "tpiedge.lab.testbed.switch.process"
_READY_S = 20.0
_MAX_LINE = 1 << 16
_TRY = ("tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
#: The switch leaves its parent, keeping standard input: a shell would close that of what it does not wait for.
_DETACH = 'exec 3<&0; "$@" <&3 3<&- &'


def best_network() -> Network:
    """The kernel's own where it has netem."""
    try:
        with scratch_namespace() as scratch:
            run_inside(scratch, _TRY)
    except (TpiedgeError, OSError):
        return "switch"
    return "netem"


def start(made: TestbedState, namespaces: Mapping[str, Path]) -> None:
    """Let packets flow. Raises UserError, ResourceError."""
    if made.network == "netem":
        _run_all(network_commands(made.topology, namespaces), namespaces)
    else:
        _start_switch(made, namespaces)


def set_link(made: TestbedState, member: str, namespaces: Mapping[str, Path]) -> None:
    """Make the two directions of the member's link what they are in `made`. Raises UserError, ResourceError."""
    topology = made.topology
    if made.network == "netem":
        _run_all(link_commands(topology, member), namespaces)
        return
    SwitchClient(socket_of(made.name)).set_links(topology.switch_changes(member))


def counters(made: TestbedState, namespaces: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """Link direction ("laptop up") -> packets, bytes, dropped and, of the switch, lost. Raises ResourceError."""
    if made.network == "switch":
        return dict(SwitchClient(socket_of(made.name)).counters()["links"])
    found: dict[str, dict[str, Any]] = {}
    for member in made.topology.description.members:
        if member.uplink is not None:
            ends = ((member.name, interface_of(member), "up"), (member.uplink, member.name, "down"))
            for place, interface, way in ends:
                found[f"{member.name} {way}"] = _sent(namespaces[place], interface)
    return found


def switches(name: str) -> set[int]:
    """The processes that are the testbed's switch: one, or none."""
    return module_processes(_SWITCH_MODULE, str(socket_of(name)))


def _sent(namespace: Path, interface: str) -> dict[str, Any]:
    """What the interface has sent."""
    lines = run_inside(namespace, ("cat", "/proc/net/dev")).splitlines()
    fields = next((line.split() for line in lines if line.strip().startswith(f"{interface}:")), None)
    if fields is None or len(fields) < 17:
        return {}
    return {"packets": int(fields[10]), "bytes": int(fields[9]), "dropped": int(fields[12])}


def _run_all(commands: Iterable[MemberCommand], namespaces: Mapping[str, Path]) -> None:
    for member, command in commands:
        run_inside(namespaces[member], command)


def _start_switch(made: TestbedState, namespaces: Mapping[str, Path]) -> None:
    """It runs on its own from here on. Raises ResourceError."""
    log = folder_of(made.name) / "switch.log"
    answer = _started(made, made.topology.switch_plan(namespaces).to_json(), log)
    if answer != "ready":
        last = log.read_text(errors="replace").strip().rpartition("\n")[2]
        reason = answer.removeprefix("error: ") or last or "it ended without a word"
        raise ResourceError(f"the switch of the testbed {made.name} does not start: {reason}")


def _started(made: TestbedState, plan: str, log: Path) -> str:
    """What the switch says to the plan; it is in a session of its own, and no child of this process."""
    switch = (sys.executable, "-P", "-m", _SWITCH_MODULE, str(socket_of(made.name)))
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            ("sh", "-c", _DETACH, "sh", *switch),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd="/",
            start_new_session=True,
        ) as shell,
    ):
        if shell.stdin is None or shell.stdout is None:
            raise ResourceError("the switch was started without pipes")
        with contextlib.suppress(BrokenPipeError), shell.stdin as pipe:  # what it says tells why
            pipe.write(plan.encode() + b"\n")
        return _first_line(shell.stdout, time.monotonic() + _READY_S)


def _first_line(pipe: IO[bytes], deadline: float) -> str:
    """What has come of it by the deadline."""
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while (
            b"\n" not in line
            and len(line) < _MAX_LINE
            and selector.select(max(0.0, deadline - time.monotonic()))
        ):
            data = os.read(pipe.fileno(), 4096)
            if not data:
                break
            line += data
    return line.partition(b"\n")[0].decode(errors="replace").strip()
