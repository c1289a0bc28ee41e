"""What a master says first: how workers join it, and where programs, browsers and phones find it."""

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import segno

from tpiedge.cli.token_file import invitation, offered
from tpiedge.host.addresses import Address, outgoing_host
from tpiedge.joining.tokens import JoinToken
from tpiedge.transport.keys import CurveKeys

_ANYWHERE: Final = ("0.0.0.0", "::")
_THIS_COMPUTER: Final = ("127.0.0.1", "::1", "localhost")
_QUIET_ZONE: Final = 2
#: Light squares are drawn, so they must be the lighter ones whatever the terminal's own colours are.
_WHITE_ON_BLACK: Final = "\x1b[97;40m"
_USUAL: Final = "\x1b[0m"


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
