"""Faults of the links between machines, each of one worker's, for a while."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from tests.process.network.namespaces import Namespaces
from tools.nemesis.scene import Scene, Seconds

_BROKEN_S: Seconds = (0.5, 10.0)
_PERCENT = (1, 30)
_MEGABITS = (1, 20)


def cut(scene: Scene) -> bool:
    """Drops everything silently, both ways."""
    return _break(scene, lambda links, name: links.dropping(name))


def deafen(scene: Scene) -> bool:
    """The worker hears nothing; what it says passes."""
    return _break(scene, lambda links, name: links.dropping(name, sent=False))


def mute(scene: Scene) -> bool:
    """Drops what the worker sends; it still receives."""
    return _break(scene, lambda links, name: links.dropping(name, received=False))


def reset(scene: Scene) -> bool:
    """A firewall answers every packet with a reset."""
    return _break(scene, lambda links, name: links.resetting(name))


def lose(scene: Scene) -> bool:
    """Packets are lost, 1 to 30 % of them, both ways."""
    percent = scene.draws.randint(*_PERCENT)
    return _break(scene, lambda links, name: links.losing(name, percent))


def slow_down(scene: Scene) -> bool:
    """The worker receives 1 to 20 Mbit/s."""
    megabits = scene.draws.randint(*_MEGABITS)
    return _break(scene, lambda links, name: links.slow(name, megabits))


def partition(scene: Scene) -> bool:
    """Two workers do not reach each other; both reach the master."""
    if len(scene.stage.names) < 2:
        return False
    one, other = scene.draws.sample(scene.stage.names, 2)
    return _break(scene, lambda links, _name: links.partitioned(one, other), (f"{one} to {other}",))


def _break(
    scene: Scene,
    fault: Callable[[Namespaces, str], AbstractContextManager[None]],
    machines: tuple[str, ...] = (),
) -> bool:
    links = scene.stage.links
    assert links is not None
    return scene.break_one("link", machines or scene.stage.names, lambda name: fault(links, name), _BROKEN_S)
