"""Announces and finds masters by mDNS. An announcement is not authenticated."""

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import click

from tpiedge.errors import PeerError, ResourceError, UserError
from tpiedge.host.addresses import Address, outgoing_host
from tpiedge.joining.connecting import who_is_at
from tpiedge.joining.identity import cluster_name
from tpiedge.wire.codec import PROTOCOL

if TYPE_CHECKING:
    from tpiedge.joining.mdns import AnnouncedMaster

_LOOK_S: Final = 5.0


def check_announcing(address: Address) -> None:
    _check_installed("--announce")
    host = address.host
    if not host.replace(".", "").isdecimal() or host.startswith("127."):  # a name, or IPv6
        # Without a network yet, not the exit status of bad input: a service tries again.
        raise (UserError if outgoing_host() else ResourceError)(
            f"--announce: other machines cannot reach {address}: --listen at an IPv4 address of the local network"
        )


@contextlib.contextmanager
def announcing(address: Address, master_key: str, say: Callable[[str], None]) -> Iterator[None]:
    """Announces the master during the block. `say` gets the announced name, or the reason why the announcement
    failed."""
    over = threading.Event()

    def not_announced(error: Exception) -> str:
        how = f"tpiedge worker --connect {address}"
        return f"this master is not announced: {error}; on another machine:  {how}"

    def announce() -> None:
        from tpiedge.joining.mdns import announced

        try:
            with announced(socket.gethostname(), address, PROTOCOL, cluster_name(master_key)) as name:
                if not over.is_set():
                    say(f"announced here as {name}; on another machine:  tpiedge worker")
                over.wait()
        except Exception as error:  # the library may fail in any way: the master serves on
            if not over.is_set():
                say(not_announced(error))

    thread = threading.Thread(target=announce, name="announce", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # the system starts no more threads
        say(not_announced(error))
    try:
        yield
    finally:
        over.set()
        if thread.ident is not None:
            thread.join(3.0)


def master_nearby(
    wait_s: float, known: Mapping[Address, str], say: Callable[[str], None]
) -> tuple[Address, str | None]:
    """Returns (address, key) of a master. The key is None if it is unknown. `known` maps addresses to keys, in the
    order to try. May ask the user. Raises UserError, PeerError."""
    if (found := _first([*known.items()])) is not None:
        say(f"joining the known master at {found[0]}; --connect HOST names another one")
        return found
    _check_installed("name the master: --connect HOST, or --token with what it printed; finding one")
    from tpiedge.joining.mdns import masters_nearby

    say(f"looking for masters in this network ({_LOOK_S:.0f} s); --connect HOST names one")
    deadline, clusters = time.monotonic() + wait_s, {cluster_name(key): key for key in known.values()}
    while True:
        announced = {one.address: one for one in masters_nearby(_LOOK_S)}
        claims = [
            (one.address, clusters[one.cluster]) for one in announced.values() if one.cluster in clusters
        ]
        if (own := _first(claims)) is not None:
            say(f"joining {announced[own[0]].words(PROTOCOL)}, a known master")
            return own
        asks = sys.stdin.isatty() and sys.stderr.isatty()
        if announced and (asks or not known):
            one = _chosen([*announced.values()], asks, alone=not known)
            say(f"joining {one.words(PROTOCOL)}")
            return one.address, known.get(one.address)
        if time.monotonic() >= deadline:
            raise PeerError(_nobody([*announced.values()], known))
        if (found := _first([*known.items()])) is not None:
            return found


def _chosen(found: "Sequence[AnnouncedMaster]", asks: bool, *, alone: bool) -> "AnnouncedMaster":
    if alone and len(found) == 1:
        return found[0]
    if not asks:
        raise UserError(f"{len(found)} masters found: choose one with --connect HOST:PORT ({_list(found)})")
    for number, one in enumerate(found, 1):
        click.echo(f"{number}  {one.words(PROTOCOL)}", err=True)
    chosen: int = click.prompt("Which one", type=click.IntRange(1, len(found)), err=True)
    return found[chosen - 1]


def _first(tries: Sequence[tuple[Address, str]]) -> tuple[Address, str] | None:
    may_be, threads = None, ThreadPoolExecutor(8)
    try:
        answers = threads.map(lambda one: who_is_at(*one), tries)
        for one, who in zip(tries, answers, strict=True):
            if who == "the master":
                return one
            if who == "somebody":
                may_be = may_be or one
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
    return may_be


def _nobody(announced: "Sequence[AnnouncedMaster]", known: Mapping[Address, str]) -> str:
    if not known:
        return (
            f"no master found within {_LOOK_S:.0f} s: start one with --announce, or name it: --connect HOST, or "
            "--token with what it printed"
        )
    others = f"; others found: {_list(announced)}" if announced else ""
    places = ", ".join(map(str, known))
    return f"no known master answers ({places}){others}: --connect HOST joins another one"


def _list(found: "Sequence[AnnouncedMaster]") -> str:
    return "; ".join(one.words(PROTOCOL) for one in found)


def _check_installed(what: str) -> None:
    try:
        import zeroconf  # noqa: F401
    except ModuleNotFoundError:
        raise UserError(f"{what} needs zeroconf: pip install 'tpiedge[mdns]'") from None
