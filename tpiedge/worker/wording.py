"""Lines for the user of a worker's machine. Pure."""

import re
from collections.abc import Mapping
from typing import Final

from tpiedge.errors import PeerLost
from tpiedge.sanitise import sanitised_line
from tpiedge.wire.epochs import Spare
from tpiedge.wire.fields import SpareKind

SMALL_MTU: Final = (
    "large packets do not reach the master, small ones do: give this machine's network interface a smaller MTU "
    "(ip link set DEVICE mtu 1280), or fix the tunnel or switch in between"
)

#: The cause that `launch/child.py` writes.
_ENDED: Final = re.compile(r"its process ended with status \d+ \((.*)\)")
_SPARE: Final[Mapping[SpareKind, str]] = {
    "no plan": "the master cannot use this machine yet",
    "excluded": "this machine is left out for now",
    "drained": "this machine is drained",
    "fetching": "this machine joins later",
    "no room": "this machine cannot be used now",
    "too small": "this machine cannot be used",
}


def spare_line(spare: Spare) -> str:
    return f"{_SPARE.get(spare.kind, 'this machine is not needed now')}: {sanitised_line(spare.why)}"


def stopped_line(cause: str) -> str:
    """Says why the machine's node ended, perhaps by another node's loss."""
    words = sanitised_line(cause)
    ended = _ENDED.fullmatch(words)
    words = ended[1] if ended else words
    lost = PeerLost.read(words)
    if lost is not None:
        words = f"{'another machine' if lost.rank else 'the master'} was lost: {lost.cause}"
    return f"computing stopped: {words}"
