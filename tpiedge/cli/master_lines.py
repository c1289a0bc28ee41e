"""What a master says of itself: first where workers, programs and browsers find it, then what changes."""

import io
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import segno

from tpiedge.cli.token import invitation, offered
from tpiedge.host.addresses import Address, outgoing_host
from tpiedge.host.usage import FreedMemory
from tpiedge.joining.pairing import Pending
from tpiedge.joining.tokens import JoinToken
from tpiedge.master.master import Master
from tpiedge.master.status import ClusterStatus, NodeStatus, collective_names
from tpiedge.sanitise import quote, sanitised_line
from tpiedge.supervision import Supervisor
from tpiedge.transport.keys import CurveKeys
from tpiedge.units import counted
from tpiedge.wire.fields import SpareKind

_ANYWHERE: Final = ("0.0.0.0", "::")
_THIS_COMPUTER: Final = ("127.0.0.1", "::1", "localhost")
_QUIET_ZONE: Final = 2
#: Light squares are drawn, so they must be the lighter ones whatever the terminal's own colours are.
_WHITE_ON_BLACK: Final = "\x1b[97;40m"
_USUAL: Final = "\x1b[0m"
_WATCH_S = 0.1
_CALL_S, _FORGIVEN_S = 5.0, 600.0
_SPARE = {
    "drained": "is drained",
    "excluded": "is left out",
    "no room": "cannot be used now",
    "too small": "cannot be used",
}


def lan_address(listen: Address) -> Address:
    """Where others most likely reach what listens at `listen`; on loopback where there is no network."""
    if listen.host not in _ANYWHERE:
        return listen
    return Address(outgoing_host() or "127.0.0.1", listen.port)


def url_for_others(http: Address, url: str) -> str:
    """What other computers type, where they can. `url`: of the API as this computer reaches it."""
    return url if http.host not in _ANYWHERE else f"{url.partition('://')[0]}://{lan_address(http)}"


@contextmanager
def workers_invited(
    listen: Address, keys: CurveKeys, folder: Path, token_file: Path | None, say: Callable[[str], None]
) -> Iterator[None]:
    """Writes a token for every worker into the file, or says one worker's line to paste. Void afterwards."""
    address = lan_address(listen)
    if token_file is not None:
        with offered(token_file, folder, keys.public, address):
            say(f"workers join with: tpiedge worker --token-file {token_file}")
            yield
        return
    with invitation(folder) as secret:
        token = JoinToken(keys.public, secret, address)
        say(f"on another machine:  tpiedge worker --connect {address} --token {token.text}")
        say("one worker per token; more with: tpiedge token create")
        yield


def page_lines(http: Address, url: str, columns: int) -> list[str]:
    """The address of the page; where other devices reach it as a QR code, too, if `columns` hold that, else how they
    would reach it. `url` as of `url_for_others`, without a secret."""
    page = f"{url_for_others(http, url)}/"
    if lan_address(http).host in _THIS_COMPUTER:
        return [
            f"its page, for a browser of this computer:  {page}",
            f"phones and other computers reach it with:  --http 0.0.0.0:{http.port} --api-key-file FILE",
        ]
    return [f"its page, for a browser of any device here:  {page}", *qr_lines(page, columns)]


def qr_lines(text: str, columns: int) -> list[str]:
    """A QR code of `text` in half blocks, two rows of squares to a line; none where it has more than `columns`."""
    code = segno.make_qr(text, error="l")
    if code.symbol_size(border=_QUIET_ZONE)[0] > columns:
        return []
    drawn = io.StringIO()
    code.terminal(drawn, border=_QUIET_ZONE, compact=True)
    return [f"{_WHITE_ON_BLACK}{line}{_USUAL}" for line in drawn.getvalue().splitlines()]


def terminal_columns() -> int:
    """Of standard error; 0 where it is no terminal, or one that knows neither half blocks nor colours."""
    shows = sys.stderr.isatty() and sys.stderr.encoding.lower() == "utf-8"
    if not shows or os.environ.get("TERM", "") in ("", "dumb") or os.environ.get("NO_COLOR"):
        return 0
    return os.get_terminal_size(sys.stderr.fileno()).columns


def watch(
    running: Master,
    supervisor: Supervisor,
    pending: Callable[[], Sequence[Pending]],
    say: Callable[[str], None],
) -> None:
    """Says what changes, `pending` workers too, until the user ends it. Raises what ended the control thread, or
    another one. Meanwhile what floods took is given back to the system."""
    show, callers, freed = Changes(say), Callers(say), FreedMemory()
    while running.failed is None:
        supervisor.check()
        show(running.status)
        callers(pending(), time.monotonic())
        freed.give_back(time.monotonic())
        time.sleep(_WATCH_S)
    raise running.failed


class Callers:
    """Turns workers that show a code into lines: one for each, but ever fewer the more they are, whoever calls."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._known: frozenset[str] = frozenset()
        self._due, self._pause_s = -math.inf, _CALL_S

    def __call__(self, pending: Sequence[Pending], now: float) -> None:
        self._known &= {one.name for one in pending}
        new = [one for one in pending if one.name not in self._known]
        if now >= self._due + _FORGIVEN_S:
            self._pause_s = _CALL_S
        if new and now >= self._due:
            self._due = now + self._pause_s
            self._pause_s *= 2
            self._known |= {new[0].name}
            self._say(
                f"{new[0].address} waits to join: type 'tpiedge nodes approve CODE' with the code on its screen "
                f"(it says that it is {quote(new[0].host)})"
            )


class Changes:
    """Turns snapshots into lines."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._last = ""
        #: Of each machine in the last snapshot, the reason for which the plan has no part for it.
        self._spare: dict[str, SpareKind | Literal[""]] = {}

    def __call__(self, status: ClusterStatus) -> None:
        line = _summary(status)
        if line != self._last:
            self._last = line
            self._say(line)
        said, self._spare = self._spare, {node.name: node.spare for node in status.nodes}
        for node in status.nodes:
            # No plan: the summary says so.
            if node.spare != said.get(node.name, "") and node.spare not in ("", "no plan"):
                what = _SPARE.get(node.spare, "waits as a spare")
                self._say(f"{_called(node, status)} {what}: {sanitised_line(node.why)}")


def _called(node: NodeStatus, status: ClusterStatus) -> str:
    """What its machine calls itself, with the name that tells it from others of that name."""
    host = node.host or node.name
    others = (other for other in status.nodes if other.name != node.name)
    return f"{node.name} ({host})" if any(host in (other.name, other.host) for other in others) else host


def _summary(status: ClusterStatus) -> str:
    if not status.ready:
        fetching = [node for node in status.nodes if node.fetched_bytes < node.fetch_total_bytes]
        return f"not ready: {status.reason}" + "".join(
            f"; {_called(node, status)} fetches" for node in fetching
        )
    parts = [node for node in status.nodes if node.rank is not None]
    names = ", ".join(_called(node, status) for node in parts)
    way = f", {collective_names(status.collective, status.bulk_collective)}" if status.collective else ""
    return f"ready: {counted(len(parts), 'node')} ({names}){way}"
