"""Brings testbeds of namespaces up and down, one command at a time. Needs Linux and root.

A separate process forwards packets: see switch_process.py.
"""

import contextlib
import select
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tpiedge.errors import ResourceError, UserError
from tpiedge.lab.testbed import state
from tpiedge.lab.testbed.description import Device, Link, Scenario, check_name
from tpiedge.lab.testbed.isolation import (
    NAMESPACES,
    Controllers,
    add_namespace,
    end_all,
    members_of,
    module_processes,
    processors,
    remove_namespace,
)
from tpiedge.lab.testbed.state import Owner, TestbedState, folder_of, locked, prefix_of, read_state, socket_of
from tpiedge.lab.testbed.switch import SwitchClient
from tpiedge.progress import Say
from tpiedge.units import counted

_POLITE_S = 3.0
_SWITCH_MODULE = "tpiedge.lab.testbed.switch_process"
#: Starts the switch in the background with its standard input, which a shell otherwise closes.
_DETACH = 'exec 3<&0; "$@" <&3 3<&- &'
_REMOVED = "removed what an earlier command left of {}"


def up(scenario: Scenario, say: Say, owner: Owner | None = None) -> TestbedState:
    """Brings a testbed up. A failed start leaves nothing behind. Also removes testbeds whose owners have ended."""
    name = scenario.name
    with locked():
        _clear_orphans(say)
        _clear(name, say)
        made = TestbedState(name, scenario.text, maker=Owner.own(), owner=owner)
        made.write()
        try:
            _build(made, say)
            made = replace(made, ready=True)
            made.write()
        except BaseException:
            _remove(name)
            raise
    return made


def down(name: str, owner: Owner | None = None) -> bool:
    """Removes a testbed and ends its processes. With `owner`, spares a testbed of another owner. Returns whether
    anything was removed."""
    check_name(name, "a testbed")
    with locked():
        if owner is not None and (found := read_state(name)) is not None and found.owner != owner:
            return False
        return _remove(name)


def known_names() -> list[str]:
    """Returns the names of all testbeds, leftovers included."""
    marked = {path.name for path in NAMESPACES.glob("tpiedge.*.*")} if NAMESPACES.is_dir() else set()
    marked |= Controllers.here().found("tpiedge.")
    made = {*state.names(), *(parts[1] for name in marked if len(parts := name.split(".")) == 3)}
    return sorted(name for name in made if _is_name(name))


def change_link(name: str, member: str, change: Callable[[Link, Link], tuple[Link, Link]]) -> TestbedState:
    """Replaces both directions of `member`'s uplink by `change(up, down)`."""
    with locked():
        found = read_state(name)
        if found is None or found.abandoned or not found.ready:
            raise UserError(f"the testbed {name} is not up: tpiedge testbed up {name}")
        known = found.topology.wired(member, name)
        changed = replace(found, links={**found.links, member: change(known.up, known.down)})
        SwitchClient(socket_of(name)).set_links(changed.topology.switch_changes(member))
        changed.write()
        return changed


def namespaces_of(made: TestbedState) -> dict[str, Path]:
    devices = made.topology.description.devices
    return {device.name: NAMESPACES / f"{prefix_of(made.name)}{device.name}" for device in devices}


def members(name: str, device: str) -> set[int]:
    full = f"{prefix_of(name)}{device}"
    return members_of([NAMESPACES / full]) | Controllers.here().members(full)


def switches(name: str) -> set[int]:
    return module_processes(_SWITCH_MODULE, str(socket_of(name)))


def _is_name(name: str) -> bool:
    try:
        return bool(check_name(name, "a testbed"))
    except UserError:
        return False


def _clear_orphans(say: Say) -> None:
    # Perhaps no later command uses these names.
    for name in state.names():
        found = read_state(name)
        if found is None or not found.orphaned:
            continue
        try:
            _remove(name)
            say(_REMOVED.format(name))
        except ResourceError as error:  # no reason not to make another
            say(f"cannot remove what an earlier command left of {name}: {error}")


def _clear(name: str, say: Say) -> None:
    found = read_state(name)
    if found is None or found.abandoned:
        if _remove(name):
            say(_REMOVED.format(name))
        return
    if found.owner is not None:
        raise UserError(
            f"the testbed {name} belongs to a running command (process {found.owner.pid}) and ends with it: "
            "wait, or give yours another --name"
        )
    raise UserError(f"the testbed {name} is up already: tpiedge testbed down {name} ends it")


def _build(made: TestbedState, say: Say) -> None:
    namespaces = namespaces_of(made)
    say(f"{made.name}: {counted(len(namespaces), 'device')}")
    for path in namespaces.values():
        add_namespace(path.name)
    _make_groups(made, say)
    _start_switch(made, namespaces)


def _make_groups(made: TestbedState, say: Say) -> None:
    controllers, prefix = Controllers.here(), prefix_of(made.name)
    devices = made.topology.description.devices
    try:
        for device in devices:
            controllers.make(prefix + device.name)
    except OSError as error:
        say(f"devices have no limits: this computer lets nobody make control groups ({error.strerror})")
        return
    missing = [
        what for what, top in (("processors", controllers.cpu), ("memory", controllers.memory)) if top is None
    ]
    if missing:
        say(f"devices have no limit of {' and '.join(missing)}: this computer has no control groups for that")
    for device in devices:
        _limit(controllers, prefix + device.name, device)


def _limit(controllers: Controllers, group: str, device: Device) -> None:
    try:
        if device.cpus is not None and device.cpus < processors():
            controllers.limit_cpus(group, device.cpus)
        if device.memory_bytes is not None:
            controllers.limit_memory(group, device.memory_bytes, device.swap_bytes)
    except OSError as error:
        raise ResourceError(f"cannot limit the control group {group}: {error.strerror}") from None


def _start_switch(made: TestbedState, namespaces: dict[str, Path]) -> None:
    log = folder_of(made.name) / "switch.log"
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
        assert shell.stdin is not None
        assert shell.stdout is not None
        with contextlib.suppress(BrokenPipeError), shell.stdin as pipe:  # what it says tells why
            pipe.write(made.topology.switch_plan(namespaces).to_json().encode() + b"\n")
        ready, _, _ = select.select([shell.stdout], [], [], 20.0)
        said = shell.stdout.readline().decode(errors="replace").strip() if ready else ""
    if said != "ready":
        last = log.read_text(errors="replace").strip().rpartition("\n")[2]
        reason = said.removeprefix("error: ") or last or "it ended without a word"
        raise ResourceError(f"the switch of the testbed {made.name} does not start: {reason}")


def _remove(name: str) -> bool:
    controllers, prefix, folder = Controllers.here(), prefix_of(name), state.folder_of(name)
    (folder / "state.json").unlink(missing_ok=True)
    paths = sorted(NAMESPACES.glob(f"{prefix}*"))
    groups = sorted(controllers.found(prefix))
    end_all(lambda: members_of(paths).union(*map(controllers.members, groups)), _POLITE_S)
    end_all(lambda: switches(name), _POLITE_S)
    for path in paths:
        remove_namespace(path)
    for group in groups:
        controllers.remove(group)
    there = folder.is_dir()
    shutil.rmtree(folder, ignore_errors=True)
    return bool(there or paths or groups)
