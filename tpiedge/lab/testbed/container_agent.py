"""Answers one request about a testbed of containers. Runs in the switch's container, which sees the engine's processes:

    python -m tpiedge.lab.testbed.container_agent '{"do": "state", "pids": {"device1": 4711}}'

Prints one line of JSON: the answer, or {"error": ..., "fault": "user" or "resource"}.

`state`   returns the switch's counters, the stored links, and the resource use of each device
`set`     applies the changes `links` (see SwitchClient.set_links) and adds the object `remember` to the stored links
`measure` returns throughput and round trips between two devices. `devices` has the name, address and pid of both, the
          source first. `longest_rtt_s` (seconds) extends every wait.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tpiedge.errors import ResourceError, TpiedgeError, UserError
from tpiedge.lab.testbed.docker_engine import LINKS_FILE, SOCKET
from tpiedge.lab.testbed.isolation import Controllers
from tpiedge.lab.testbed.measuring import End, measure_pair
from tpiedge.lab.testbed.switch import SwitchClient


def main(arguments: list[str]) -> int:
    try:
        answer = _answer(json.loads(arguments[0]))
    except (TpiedgeError, OSError) as error:
        answer = {"error": str(error), "fault": "user" if isinstance(error, UserError) else "resource"}
    print(json.dumps(answer))  # noqa: T201
    return 0


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    match request["do"]:
        case "state":
            return {
                "counters": SwitchClient(Path(SOCKET)).counters(),
                "links": _remembered(),
                "devices": {name: _use(pid) for name, pid in request["pids"].items()},
            }
        case "set":
            SwitchClient(Path(SOCKET)).set_links(request["links"])
            _remember(_remembered() | request["remember"])
            return {}
        case "measure":
            source, target = (
                End(one["name"], one["address"], Path(f"/proc/{one['pid']}/ns/net"))
                for one in request["devices"]
            )
            return asdict(measure_pair(source, target, request["longest_rtt_s"]))
    raise ResourceError(f"the testbed's image is of another version: it does not know {request['do']!r}")


def _use(pid: int) -> dict[str, Any]:
    # A container sees only its own group, so read through a process of the group.
    groups = Path(f"/proc/{pid}/root/sys/fs/cgroup")
    old = (groups / "memory" / "memory.limit_in_bytes").exists()
    controllers, group = Controllers(None, 0, groups, 1 if old else 2), "memory" if old else "."
    return {**asdict(controllers.use(group)), "processes": sorted(controllers.members(group))}


def _remembered() -> dict[str, Any]:
    try:
        return dict(json.loads(Path(LINKS_FILE).read_text()))
    except FileNotFoundError:
        return {}


def _remember(links: Mapping[str, Any]) -> None:
    partial = f"{LINKS_FILE}.partial"
    Path(partial).write_text(json.dumps(links))
    os.replace(partial, LINKS_FILE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
