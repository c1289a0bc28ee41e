"""Faults of processes, and workers that leave and come."""

import itertools
import os
import subprocess
from collections.abc import Collection

import psutil

from tests.process.command import COMMAND
from tests.process.serving.serving import Serving
from tools.nemesis.scene import Scene, Seconds

_STOPPED_S: Seconds = (0.1, 10.0)
_STAY_S: Seconds = (2.0, 8.0)
_DOWN_S: Seconds = (0.0, 3.0)
_DRAINED_S: Seconds = (2.0, 8.0)
#: For the command, whatever the cluster does.
_ORDERED_S = 30.0
_extra = itertools.count(1)


def kill_node(scene: Scene, among: Collection[str] | None = None) -> bool:
    return _kill(scene.node(among))


def stop_node(scene: Scene) -> bool:
    return _stop(scene, scene.node())


def kill_rank_zero(scene: Scene) -> bool:
    return _kill(scene.rank_zero())


def stop_rank_zero(scene: Scene) -> bool:
    return _stop(scene, scene.rank_zero())


def _kill(node: psutil.Process | None) -> bool:
    if node is not None:
        node.kill()
    return node is not None


def _stop(scene: Scene, node: psutil.Process | None) -> bool:
    if node is not None:
        scene.stand_still([node], _STOPPED_S)
    return node is not None


def stop_machine(scene: Scene) -> bool:
    """All that runs on it stands still for a while."""
    worker = scene.worker()
    if worker is not None:
        scene.stand_still([worker.agent, *worker.agent.children(recursive=True)], _STOPPED_S, worker.name)
    return worker is not None


def kill_agent(scene: Scene, among: Collection[str] | None = None) -> bool:
    """Kills an agent, and its node with it, and restarts it."""
    worker = scene.worker(among)
    if worker is not None:
        worker.agent.kill()
        worker.process.wait()
        scene.come_back(worker)
    return worker is not None


def kill_master(scene: Scene) -> bool:
    """Kills the master with all answers under way; the next one resumes them."""
    return scene.restart_master(_DOWN_S)


def leave(scene: Scene) -> bool:
    """Ends a worker in order; it comes back."""
    worker = scene.worker()
    if worker is not None:
        worker.process.end()
        scene.come_back(worker)
    return worker is not None


def drain(scene: Scene) -> bool:
    """Drains a worker as its user, or is refused. The user undoes it later, and again while that is refused, as it is
    where the worker is away."""
    worker = scene.worker()
    if worker is None:
        return False
    drained = start_drain(scene.cluster, worker.name)

    def undo() -> None:
        drained.wait(_ORDERED_S)
        if start_drain(scene.cluster, worker.name, "--undo").wait(_ORDERED_S) != 0:
            scene.later(_DRAINED_S, "drain undone", undo)

    scene.later(_DRAINED_S, "drain undone", undo)
    return True


def start_drain(cluster: Serving, name: str, *options: str) -> subprocess.Popen[bytes]:
    """`tpiedge nodes drain`, which ends by itself."""
    return subprocess.Popen(
        [COMMAND, "nodes", "drain", name, "--timeout", "5", *options],
        env={**os.environ, "TPIEDGE_STATE": str(cluster.state)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def join_and_leave(scene: Scene) -> bool:
    """An extra worker joins, for a while."""
    scene.end_later(scene.stage.start_worker(f"extra-{next(_extra)}", token=True), _STAY_S)
    return True
