"""Strikes."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection

import httpx
import psutil

from tools.nemesis import of_links, of_machines, of_pages, of_processes
from tools.nemesis.scene import Scene

Fault = Callable[[Scene], bool]
"""Whether there was somebody whom it could hit."""


def _stop_reader(scene: Scene) -> bool:
    """Has a client stand still for a while or not at all, and then lose its connection."""
    scene.breaks.add()
    return True


#: Kind, as of `stage.KINDS` -> its faults.
FAULTS: dict[str, dict[str, Fault]] = {
    "kills": {
        "node killed": of_processes.kill_node,
        "agent killed": of_processes.kill_agent,
        "rank 0 killed": of_processes.kill_rank_zero,
    },
    "processes": {
        "node stopped": of_processes.stop_node,
        "rank 0 stopped": of_processes.stop_rank_zero,
        "machine stopped": of_processes.stop_machine,
        "worker left": of_processes.leave,
        "worker joined": of_processes.join_and_leave,
        "worker drained": of_processes.drain,
    },
    "links": {
        "link cut": of_links.cut,
        "link deaf": of_links.deafen,
        "link mute": of_links.mute,
        "link reset": of_links.reset,
        "link lossy": of_links.lose,
        "link slow": of_links.slow_down,
        "workers partitioned": of_links.partition,
    },
    "disks": {"disk full": of_machines.disk_full, "disk errors": of_machines.disk_errors},
    "memory": {"little memory": of_machines.little_memory},
    "clocks": {"clock jumped": of_machines.other_time},
    "master": {"master killed": of_processes.kill_master},
    "readers": {"reader stopped": _stop_reader},
    "pages": {
        "pages' bits flipped": of_pages.flip_bits,
        "pages cut short": of_pages.cut_short,
        "pages deleted": of_pages.delete,
        "pages renamed": of_pages.rename,
        "pages' folder replaced": of_pages.replace_folder,
        "page writer killed": of_pages.kill_writer,
    },
    "page-disks": {"page disk full": of_pages.disk_full, "page disk errors": of_pages.disk_errors},
}
_TWO_AT_ONCE = 0.2


class Nemesis:
    """Draws faults of the `kinds` for the scene."""

    def __init__(self, scene: Scene, kinds: Collection[str]) -> None:
        self.count = Counter[str]()
        self._scene = scene
        self._faults = {name: fault for kind in kinds for name, fault in FAULTS[kind].items()}

    def strike(self) -> int:
        """One fault, or two. Returns how many there were."""
        struck = 0
        draws = self._scene.draws
        for _ in range(2 if draws.random() < _TWO_AT_ONCE else 1):
            name = draws.choice(list(self._faults))
            begun = time.monotonic()
            # It has just ended by an earlier fault, or there is no master.
            with contextlib.suppress(psutil.NoSuchProcess, httpx.TransportError):
                if self._faults[name](self._scene):
                    self.count[name] += 1
                    struck += 1
                    self._scene.changes.append((begun, name))
        return struck
