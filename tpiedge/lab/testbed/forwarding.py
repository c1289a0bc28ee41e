"""The network of a testbed: by the kernel (netem, veth, routers as namespaces) where it can, else by the switch."""

import contextlib
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from tpiedge.errors import ResourceError, TpiedgeError
from tpiedge.lab.testbed.namespaces import run_inside, scratch_namespace
from tpiedge.lab.testbed.netem import MemberCommand, interface_of, link_commands, network_commands
from tpiedge.lab.testbed.processes import module_processes
from tpiedge.lab.testbed.state import Network, TestbedState, folder_of, socket_of
from tpiedge.lab.testbed.switch.client import SwitchClient

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
    plan = topology.switch_plan(namespaces)
    wanted = {f"{member} up", f"{member} down"}
    changes = {
        link.name: {
            "latency_s": link.latency_s,
            "jitter_s": link.jitter_s,
            "loss": link.loss,
            "bytes_per_s": link.bytes_per_s,
            "queue_bytes": link.queue_bytes,
        }
        for link in plan.links
        if link.name in wanted
    }
    SwitchClient(socket_of(made.name)).set_links(changes)


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
