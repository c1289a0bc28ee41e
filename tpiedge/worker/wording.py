"""Lines for the user of a worker. Pure."""

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
_UNTIL: Final = "this machine is a spare until another machine leaves"
#: What a machine without a part waits for, and what to type unless the reason says it.
_SPARE: Final[Mapping[SpareKind, tuple[str, str]]] = {
    "slower": (f"{_UNTIL} or a larger model is served", ""),
    "too many": (_UNTIL, ""),
    "shares": (_UNTIL, "; the master's --shares may give it a part"),
    "no plan": ("this machine waits until the master can use it", ""),
    "excluded": (
        "this machine is left out for now",
        "; to use it at once, type on the master's computer: tpiedge nodes clear {host}",
    ),
    "drained": ("this machine is drained", ""),
    "fetching": ("this machine joins once its weights are here", ""),
    "no room": ("this machine cannot be used now", ""),
    "too small": ("this machine cannot be used", ""),
}


def spare_line(spare: Spare, host: str) -> str:
    """Says what the machine `host` waits for, why, and what to type."""
    waits, to_type = _SPARE[spare.kind]
    return f"{waits}: {sanitised_line(spare.why)}{to_type.format(host=sanitised_line(host))}"


def stopped_line(cause: str) -> str:
    """Says why this machine's node ended. `cause`: see NodeSlot.exit_cause."""
    words = sanitised_line(cause)
    ended = _ENDED.fullmatch(words)
    words = ended[1] if ended else words
    lost = PeerLost.read(words)
    if lost is not None:
        words = f"{'another machine' if lost.rank else 'the master'} was lost: {lost.cause}"
    return f"computing stopped: {words}"
