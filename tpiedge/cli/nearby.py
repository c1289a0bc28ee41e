"""Masters of the local network that can be found without an address: how one is announced, how a worker picks one."""

import contextlib
import ipaddress
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import click

from tpiedge.errors import PeerError, UserError
from tpiedge.host.addresses import Address
from tpiedge.joining.announced import AnnouncedMaster
from tpiedge.wire.messages import PROTOCOL

__all__ = ["announcing", "check_announcing", "master_nearby", "pick"]

_LOOK_S = 5.0


def check_announcing(address: Address) -> None:
    """Whether a master at this address can be announced: to be asked before it is started. Raises UserError."""
    _check_installed("--announce")
    if not _is_for_others(address.host):
        raise UserError(
            f"--announce: no other machine hears of {address}: --listen at an IPv4 address of the local network"
        )


@contextlib.contextmanager
def announcing(address: Address, say: Callable[[str], None]) -> Iterator[None]:
    """Other machines find the master at `address`, as long as the block takes; `say` is told how. Raises UserError."""
    from tpiedge.joining.mdns import announced

    with announced(socket.gethostname(), address, PROTOCOL) as name:
        say(f"announced here as {name}; on another machine:  tpiedge worker")
        yield


def master_nearby(wait_s: float, say: Callable[[str], None]) -> Address:
    """The master to join where nobody names one: the only one that announces itself, or the one that the user picks.
    Looks until one is found, for a few seconds and `wait_s`. Raises UserError, PeerError."""
    _check_installed(
        "say whom to join: --connect HOST, or --token with what the master printed; looking for one"
    )
    from tpiedge.joining.mdns import masters_nearby

    say(f"looking for masters in this network ({_LOOK_S:.0f} s); --connect HOST names one")
    deadline = time.monotonic() + wait_s
    while not (found := masters_nearby(_LOOK_S)):
        if time.monotonic() >= deadline:
            raise PeerError(
                f"no master announced itself within {_LOOK_S:.0f} s: start one with --announce, or say whom to join: "
                "--connect HOST, or --token with what the master printed"
            )
    one = pick(found, _asked if sys.stdin.isatty() and sys.stderr.isatty() else None)
    say(f"joining {one.words(PROTOCOL)}")
    return one.address


def pick(
    found: Sequence[AnnouncedMaster], ask: Callable[[Sequence[AnnouncedMaster]], int] | None
) -> AnnouncedMaster:
    """The only one, or the one whose index `ask` gives. Raises UserError where there is nobody to ask."""
    if len(found) == 1:
        return found[0]
    if ask is None:
        names = "; ".join(one.words(PROTOCOL) for one in found)
        raise UserError(
            f"{len(found)} masters announce themselves: say which with --connect HOST:PORT ({names})"
        )
    return found[ask(found)]


def _asked(found: Sequence[AnnouncedMaster]) -> int:
    for number, one in enumerate(found, 1):
        click.echo(f"{number}  {one.words(PROTOCOL)}", err=True)
    chosen: int = click.prompt("Which one", type=click.IntRange(1, len(found)), err=True)
    return chosen - 1


def _is_for_others(host: str) -> bool:
    try:
        return not ipaddress.IPv4Address(host).is_loopback
    except ValueError:  # a name, or IPv6
        return False


def _check_installed(what: str) -> None:
    """Raises UserError where the extra is missing."""
    try:
        import zeroconf  # noqa: F401
    except ModuleNotFoundError:
        raise UserError(f"{what} needs zeroconf: pip install 'tpiedge[mdns]'") from None
