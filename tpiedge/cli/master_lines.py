"""Lines that a running master prints: how to reach it, then each change."""

import io
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

import segno

from tpiedge.api.guard import is_loopback
from tpiedge.api.keys import AdminKey, admin_link
from tpiedge.api.server import ApiServer
from tpiedge.cli.token import install_lines, invitation, offered
from tpiedge.host.addresses import Address, outgoing_host
from tpiedge.host.certificate import Certificate
from tpiedge.host.process import FreedMemory
from tpiedge.host.service_manager import ServiceManager
from tpiedge.joining.pairing import Pending
from tpiedge.joining.tokens import JoinToken
from tpiedge.master.assignments import collective_names
from tpiedge.master.master import Master
from tpiedge.master.status import ClusterStatus, NodeStatus
from tpiedge.sanitise import quote, sanitised_line
from tpiedge.supervision import Supervisor
from tpiedge.transport.keys import CurveKeys
from tpiedge.units import counted
from tpiedge.wire.fields import SpareKind

_ANYWHERE: Final = ("0.0.0.0", "::")
_SPARE = {
    "drained": "is drained",
    "excluded": "is left out",
    "no room": "cannot be used now",
    "too small": "cannot be used",
}


def lan_address(listen: Address) -> Address:
    """Returns the address at which other machines probably reach `listen`."""
    if listen.host not in _ANYWHERE:
        return listen
    return Address(outgoing_host() or "127.0.0.1", listen.port)


def url_for_others(http: Address, url: str) -> str:
    return url if http.host not in _ANYWHERE else f"{url.partition('://')[0]}://{lan_address(http)}"


@contextmanager
def workers_invited(
    listen: Address, keys: CurveKeys, folder: Path, token_file: Path | None
) -> Iterator[list[str]]:
    """Yields lines to type on other machines. With `token_file`, writes a token for any number of workers to this file.
    Without `token_file`, makes a token for one worker. The token is invalid after the block."""
    address = lan_address(listen)
    if token_file is not None:
        with offered(token_file, folder, keys.public, address):
            yield [f"tpiedge worker --token-file {token_file}"]
        return
    with invitation(folder) as secret:
        token = JoinToken(keys.public, secret, address)
        joins = f"tpiedge worker --connect {address} --token {token.text}"
        yield [
            *(joins, "one worker per token; more with:  tpiedge token create"),
            *(
                "",
                "or, if tpiedge is not there yet, paste this:",
                *install_lines(folder, address, token.text),
            ),
        ]


def start_lines(
    name: str, http: Address, api: ApiServer, certificate: Certificate | None, left: Sequence[Path]
) -> Iterator[str]:
    """Yields lines about the served model. `left`: recorded answers that this master does not resume."""
    yield f"serving {name} at {url_for_others(http, api.url)}/v1"
    if certificate is not None:
        yield f"the certificate has the SHA-256 fingerprint {certificate.shown}"
    if api.recovered:
        yield f"resuming {counted(api.recovered, 'answer')} of the previous master"
    if left:
        yield f"unfinished in {left[0].parent}: {counted(len(left), 'answer')}; --journal resumes them"


def admin_lines(url: str, admin: AdminKey) -> list[str]:
    """Returns a line with a link that gives the page the admin key. Returns [] if `url` is not on loopback. Returns []
    without a terminal as standard error, because a log would keep the link."""
    if not (sys.stderr.isatty() and is_loopback(urlsplit(url).netloc)):
        return []
    return [f"manage the machines on the page (link works once):  {admin_link(url, admin.new_code())}"]


def next_lines(http: Address, url: str, needs_key: bool, invited: Sequence[str]) -> Iterator[str]:
    """Yields three blocks: how to chat here, how to chat on a phone, and how another machine joins."""
    key, made = ("TPIEDGE_API_KEY=KEY ", ["with a KEY of:  tpiedge keys add NAME"]) if needs_key else ("", [])
    for title, lines in (
        ("Chat here", [f"{key}tpiedge chat", *made, f"or in a browser:  {url}/"]),
        ("Chat on a phone", phone_lines(http, url, needs_key, terminal_columns() - 2)),
        ("Compute on another machine, too", invited),
    ):
        yield from ("", f"{title}:", *(f"  {line}" for line in lines))
    yield ""


def phone_lines(http: Address, url: str, needs_key: bool, columns: int) -> list[str]:
    """Returns the page's address and, if `columns` suffice, its QR code. If the API is on loopback, returns how to
    change that."""
    made = "tpiedge keys add phone"
    if is_loopback(lan_address(http).host):
        return [made, f"then start this master again with:  --http 0.0.0.0:{http.port}"]
    page = f"{url_for_others(http, url)}/"
    asks = [f"it asks for a key; the QR code of this command brings one:  {made}"] if needs_key else []
    return [page, *qr_lines(page, columns), *asks]


def qr_lines(text: str, columns: int) -> list[str]:
    """Draws a QR code in half blocks; [] if it is wider than `columns`."""
    code = segno.make_qr(text, error="l")
    if code.symbol_size(border=2)[0] > columns:
        return []
    drawn = io.StringIO()
    code.terminal(drawn, border=2, compact=True)
    # White on black: light squares stay lighter in any colour scheme.
    return [f"\x1b[97;40m{line}\x1b[0m" for line in drawn.getvalue().splitlines()]


def terminal_columns() -> int:
    """Returns the terminal's columns; 0 if it cannot show QR codes."""
    shows = sys.stderr.isatty() and sys.stderr.encoding.lower() == "utf-8"
    if not shows or os.environ.get("TERM", "") in ("", "dumb") or os.environ.get("NO_COLOR"):
        return 0
    return os.get_terminal_size(sys.stderr.fileno()).columns


def watch(
    running: Master,
    supervisor: Supervisor,
    pending: Callable[[], Sequence[Pending]],
    say: Callable[[str], None],
    manager: ServiceManager,
) -> None:
    """Prints the cluster's changes, and which workers wait for admission, until interrupted. Raises the error of a
    failed thread."""
    show, callers, freed = Changes(say, manager.status), Callers(say), FreedMemory()
    manager.ready()
    while running.failed is None:
        supervisor.check()
        show(running.status)
        callers(pending(), time.monotonic())
        freed.give_back(time.monotonic())
        manager.alive(time.monotonic(), running.usable)  # after a turn of the control thread
        time.sleep(0.1)
    raise running.failed


@dataclass(eq=False)
class Callers:
    """Announces workers that show a code, at most one in ten seconds."""

    _say: Callable[[str], None]
    _known: frozenset[str] = frozenset()
    _due: float = -math.inf

    def __call__(self, pending: Sequence[Pending], now: float) -> None:
        self._known &= {one.name for one in pending}
        new = [one for one in pending if one.name not in self._known]
        if new and now >= self._due:
            self._due = now + 10.0
            self._known |= {new[0].name}
            self._say(
                f"{new[0].address} waits to join and calls itself {quote(new[0].host)}: run 'tpiedge nodes approve "
                "CODE' with the code on its screen"
            )


@dataclass(eq=False)
class Changes:
    _say: Callable[[str], None]
    _summarise: Callable[[str], None] = lambda _line: None
    _last: str = ""
    #: The reason why the plan has no part for a machine of the last snapshot.
    _spare: dict[str, SpareKind | Literal[""]] = field(default_factory=dict)

    def __call__(self, status: ClusterStatus) -> None:
        line = _summary(status)
        if line != self._last:
            self._last = line
            self._say(line)
            self._summarise(line)
        said, self._spare = self._spare, {node.name: node.spare for node in status.nodes}
        for node in status.nodes:
            # No plan: the summary says so.
            if node.spare != said.get(node.name, "") and node.spare not in ("", "no plan"):
                what = _SPARE.get(node.spare, "is a spare")
                self._say(f"{_called(node, status)} {what}: {sanitised_line(node.why)}")


def _called(node: NodeStatus, status: ClusterStatus) -> str:
    host = node.host or node.name
    others = (other for other in status.nodes if other.name != node.name)
    return f"{node.name} ({host})" if any(host in (other.name, other.host) for other in others) else host


def _summary(status: ClusterStatus) -> str:
    if not status.ready:
        fetching = [node for node in status.nodes if node.fetched_bytes < node.fetch_total_bytes]
        return f"{'asleep' if status.asleep else 'not ready'}: {status.reason}" + "".join(
            f"; {_called(node, status)} fetches weights" for node in fetching
        )
    parts = [node for node in status.nodes if node.rank is not None]
    names = ", ".join(_called(node, status) for node in parts)
    ways = collective_names(status.collective, status.bulk_collective)
    more = (f", all-reduce {ways}" if ways else "") + (f", model {status.model}" if status.model else "")
    return f"ready: {counted(len(parts), 'node')} ({names}){more}"
