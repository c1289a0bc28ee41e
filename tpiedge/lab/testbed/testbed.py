"""Bringing a testbed up and down, and changing its links. Linux, root; one command at a time per testbed."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tpiedge.errors import ResourceError, UserError
from tpiedge.lab.testbed import forwarding, state
from tpiedge.lab.testbed.description import Link, check_name
from tpiedge.lab.testbed.groups import Controllers, processors
from tpiedge.lab.testbed.namespaces import NAMESPACES, add_namespace, end_all, members_of, remove_namespace
from tpiedge.lab.testbed.reading import Scenario
from tpiedge.lab.testbed.state import Network, Owner, TestbedState, locked, prefix_of, read_state
from tpiedge.progress import Say
from tpiedge.units import counted

_POLITE_S = 3.0
_REMOVED = "removed what an earlier command left of {}"


def up(scenario: Scenario, network: Network | None, say: Say, owner: Owner | None = None) -> TestbedState:
    """It stays until `down`, or as long as `owner` lives. Before, what a killed command left of it is removed, and so
    is every testbed whose owner has ended.

    Raises UserError where it is up already or this computer cannot have it, ResourceError; then nothing is left.
    """
    name = scenario.name
    _clear_orphans(say)  # before the lock: nobody waits for a lock who holds one
    with locked(name):
        _clear(name, say)
        chosen = network or forwarding.best_network()
        made = TestbedState(name, scenario.text, chosen, maker=Owner.own(), owner=owner)
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
    """End all processes in it but this one and remove it, or what is left of it; of an `owner`, only where it has not
    become another's meanwhile. Whether there was anything. Raises UserError, ResourceError."""
    check_name(name, "a testbed")
    with locked(name):
        if owner is not None and (found := read_state(name)) is not None and found.owner != owner:
            return False
        return _remove(name)


def known_names() -> list[str]:
    """The names of all testbeds that are there or of which something is left."""
    marked = {path.name for path in NAMESPACES.glob("tpiedge.*.*")} if NAMESPACES.is_dir() else set()
    marked |= Controllers.here().found("tpiedge.")
    made = {*state.names(), *(parts[1] for name in marked if len(parts := name.split(".")) == 3)}
    return sorted(name for name in made if _is_name(name))


def change_link(name: str, member: str, change: Callable[[Link, Link], tuple[Link, Link]]) -> TestbedState:
    """`change` gets (up, down) of the link between `member` and its uplink, and says what they are from now on.

    Raises UserError, ResourceError.
    """
    with locked(name):
        found = read_state(name)
        if found is None or found.abandoned or not found.ready:
            raise UserError(f"the testbed {name} is not up: tpiedge testbed up {name}")
        known = found.topology.wired(member, name)
        changed = replace(found, links={**found.links, member: change(known.up, known.down)})
        forwarding.set_link(changed, member, namespaces_of(changed))
        changed.write()
        return changed


def namespaces_of(made: TestbedState) -> dict[str, Path]:
    """The namespaces of its members: routers have one only where the kernel emulates the network."""
    description = made.topology.description
    with_one = description.members if made.network == "netem" else description.devices
    return {member.name: NAMESPACES / f"{prefix_of(made.name)}{member.name}" for member in with_one}


def members(name: str, device: str) -> set[int]:
    """The processes in a device."""
    full = f"{prefix_of(name)}{device}"
    return members_of([NAMESPACES / full]) | Controllers.here().members(full)


def _is_name(name: str) -> bool:
    """Others may have made what is named like a testbed's."""
    try:
        return bool(check_name(name, "a testbed"))
    except UserError:
        return False


def _clear_orphans(say: Say) -> None:
    """Removes every testbed whose owner has ended: perhaps nobody will ever use its name again."""
    for name in filter(_is_orphan, state.names()):
        try:
            with locked(name):
                if _is_orphan(name) and _remove(name):
                    say(_REMOVED.format(name))
        except ResourceError as error:  # no reason not to make another
            say(f"cannot remove what an earlier command left of {name}: {error}")


def _is_orphan(name: str) -> bool:
    found = read_state(name)
    return found is not None and found.orphaned


def _clear(name: str, say: Say) -> None:
    """Room for a new one. Raises UserError if there is one."""
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
    topology, namespaces = made.topology, namespaces_of(made)
    say(f"{made.name}: {counted(len(topology.description.devices), 'device')}, network by {made.network}")
    for path in namespaces.values():
        add_namespace(path.name)
    _make_groups(made, say)
    forwarding.start(made, namespaces)


def _make_groups(made: TestbedState, say: Say) -> None:
    """A group for each device, with its limits."""
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
        _limit(controllers, prefix + device.name, device.cpus, device.memory_bytes, device.swap_bytes)


def _limit(
    controllers: Controllers, group: str, cpus: float | None, memory_bytes: int | None, swap_bytes: int
) -> None:
    """Limits the group. As many processors as there are, or more, are no limit."""
    try:
        if cpus is not None and cpus < processors():
            controllers.limit_cpus(group, cpus)
        if memory_bytes is not None:
            controllers.limit_memory(group, memory_bytes, swap_bytes)
    except OSError as error:
        raise ResourceError(f"cannot limit the control group {group}: {error.strerror}") from None


def _remove(name: str) -> bool:
    """Removes the testbed by names alone, in whatever state it is: see `state`. From here on it cannot be used."""
    controllers, prefix, folder = Controllers.here(), prefix_of(name), state.folder_of(name)
    (folder / "state.json").unlink(missing_ok=True)
    paths = sorted(NAMESPACES.glob(f"{prefix}*"))
    groups = sorted(controllers.found(prefix))
    end_all(lambda: members_of(paths).union(*map(controllers.members, groups)), _POLITE_S)
    end_all(lambda: forwarding.switches(name), _POLITE_S)
    for path in paths:
        remove_namespace(path)
    for group in groups:
        controllers.remove(group)
    there = folder.is_dir()
    shutil.rmtree(folder, ignore_errors=True)
    return bool(there or paths or groups)
