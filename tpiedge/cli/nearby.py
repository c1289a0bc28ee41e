"""Masters of the local network that can be found without an address: how one is announced, how a worker picks one.

Anybody may announce anything: who is there is proved by a key that the worker knows, or by the code of a newcomer.
"""

import contextlib
import ipaddress
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import click

from tpiedge.errors import PeerError, UserError
from tpiedge.host.addresses import Address
from tpiedge.joining.announced import AnnouncedMaster
from tpiedge.joining.connecting import who_is_at
from tpiedge.joining.identity import cluster_name
from tpiedge.wire.messages import PROTOCOL

_LOOK_S: Final = 5.0
_ANSWER_S: Final = 3.0
_FAREWELL_S: Final = 3.0
#: Known masters that are looked for at a time.
_AT_ONCE: Final = 8

_Tried = TypeVar("_Tried")


def check_announcing(address: Address) -> None:
    """Whether a master at this address can be announced: to be asked before it is started. Raises UserError."""
    _check_installed("--announce")
    if not _is_for_others(address.host):
        raise UserError(
            f"--announce: no other machine hears of {address}: --listen at an IPv4 address of the local network"
        )


@contextlib.contextmanager
def announcing(address: Address, master_key: str, say: Callable[[str], None]) -> Iterator[None]:
    """Other machines find the master of that key at `address` soon, as long as the block takes. `say` is told how, or
    why they do not: neither the block nor its end depends on it. From another thread."""
    over = threading.Event()

    def announce() -> None:
        from tpiedge.joining.mdns import announced

        try:
            with announced(socket.gethostname(), address, PROTOCOL, cluster_name(master_key)) as name:
                if not over.is_set():
                    say(f"announced here as {name}; on another machine:  tpiedge worker")
                over.wait()
        except Exception as error:  # whatever a library meets in a strange network: the master serves on
            if not over.is_set():
                say(f"this master is not announced: {error}; on another machine:  {_joining(address)}")

    thread = threading.Thread(target=announce, name="announce", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # the machine has no thread left
        say(f"this master is not announced: {error}; on another machine:  {_joining(address)}")
    try:
        yield
    finally:
        over.set()
        if thread.ident is not None:
            thread.join(_FAREWELL_S)


def master_nearby(
    wait_s: float, known: Mapping[Address, str], say: Callable[[str], None]
) -> tuple[Address, str | None]:
    """The master to join where nobody names one, and its key, where this worker knows it: one of the `known` (keys by
    address, the best first) that is where it was or announces itself anywhere. A worker that knows none joins the only
    other one that announces itself; else a user is asked. Looks until one is found, for a few seconds and `wait_s`.
    Raises UserError, PeerError."""
    if (found := _where_it_was(known)) is not None:
        say(f"joining the master that this machine knows at {found}; --connect HOST names another one")
        return found, known[found]
    _check_installed(
        "say whom to join: --connect HOST, or --token with what the master printed; looking for one"
    )
    from tpiedge.joining.mdns import masters_nearby

    say(f"looking for masters in this network ({_LOOK_S:.0f} s); --connect HOST names one")
    deadline = time.monotonic() + wait_s
    ask = _asked if sys.stdin.isatty() and sys.stderr.isatty() else None
    while True:
        announced = masters_nearby(_LOOK_S)
        if (own := _own(announced, known)) is not None:
            say(f"joining {own[0].words(PROTOCOL)}, which this machine knows")
            return own[0].address, own[1]
        if announced and (ask is not None or not known):
            one = pick(announced, ask, alone=not known)
            say(f"joining {one.words(PROTOCOL)}")
            return one.address, known.get(one.address)
        if time.monotonic() >= deadline:
            raise PeerError(_nobody(announced, known))
        if (found := _where_it_was(known)) is not None:
            return found, known[found]


def pick(
    found: Sequence[AnnouncedMaster],
    ask: Callable[[Sequence[AnnouncedMaster]], int] | None,
    *,
    alone: bool = True,
) -> AnnouncedMaster:
    """The only one, if that needs no question where it is `alone`, or the one whose index `ask` gives. Raises UserError
    where there is nobody to ask."""
    if alone and len(found) == 1:
        return found[0]
    if ask is None:
        raise UserError(
            f"{len(found)} masters announce themselves: say which with --connect HOST:PORT ({_list(found)})"
        )
    return found[ask(found)]


def _where_it_was(known: Mapping[Address, str]) -> Address | None:
    """The first of the known masters that still answers at its address."""
    return _first([(address, address, key) for address, key in known.items()])


def _own(
    announced: Sequence[AnnouncedMaster], known: Mapping[Address, str]
) -> tuple[AnnouncedMaster, str] | None:
    """The first of those that prove to be a known master, with its key."""
    clusters = {cluster_name(key): key for key in known.values()}
    claims = [(one, clusters[one.cluster]) for one in announced if one.cluster in clusters]
    return _first([(claim, claim[0].address, claim[1]) for claim in claims])


def _first(tries: Sequence[tuple[_Tried, Address, str]]) -> _Tried | None:
    """Of the first try at whose address the master of that key is, or else may be. Several at a time: most wait for
    nobody."""
    may_be: _Tried | None = None
    threads = ThreadPoolExecutor(_AT_ONCE)
    try:
        found = threads.map(lambda one: who_is_at(one[1], one[2], _ANSWER_S), tries)
        for (tried, _, _), who in zip(tries, found, strict=True):
            if who == "the master":
                return tried
            if who == "somebody" and may_be is None:
                may_be = tried
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
    return may_be


def _nobody(announced: Sequence[AnnouncedMaster], known: Mapping[Address, str]) -> str:
    """Why there is none to join."""
    if not known:
        return (
            f"no master announced itself within {_LOOK_S:.0f} s: start one with --announce, or say whom to join: "
            "--connect HOST, or --token with what the master printed"
        )
    others = f", and others announce themselves ({_list(announced)})" if announced else ""
    places = ", ".join(map(str, known))
    return f"no master that this machine knows is there ({places}){others}: --connect HOST joins another one"


def _list(found: Sequence[AnnouncedMaster]) -> str:
    return "; ".join(one.words(PROTOCOL) for one in found)


def _joining(address: Address) -> str:
    return f"tpiedge worker --connect {address}"


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
