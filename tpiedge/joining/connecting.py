"""Connects a worker to the right master, or explains why it fails.

Functions raise UserError if another try would change nothing, else PeerError.
"""

import time
from contextlib import ExitStack, closing
from typing import Literal, TypeAlias

from tpiedge.errors import PeerError, UserError
from tpiedge.host.addresses import Address, resolve_all
from tpiedge.joining.enrolment import introduction
from tpiedge.joining.identity import peer_name
from tpiedge.joining.members import NEW_KEY
from tpiedge.joining.tokens import ticket_of
from tpiedge.transport.endpoint import CONTROL, Plane
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.monitor import LinkState
from tpiedge.transport.probe import Listener, probe
from tpiedge.transport.zeromq import ZmqSpoke
from tpiedge.wire.fields import Message
from tpiedge.wire.join import Enrolled, Refused

MASTER = "master"

Found: TypeAlias = Literal["the master", "somebody", "nobody"]
"""Only "the master" has proved its key."""

_PROBE_S = 1.0
_SLICE_S = 0.2


def open_link(
    address: Address,
    master_key: str,
    keys: CurveKeys,
    name: str,
    timeout_s: float = 3.0,
    plane: Plane = CONTROL,
    shown: str = "",
    secret: str = "",
) -> ZmqSpoke:
    """Returns a link to the master at the first address that works. The caller closes the link. Each address may take
    `timeout_s`. Errors name the address `shown`. With a token's `secret`, the link gets a place reserved for tokens."""
    ticket = ticket_of(secret, name) if secret else ""
    failures: list[UserError | PeerError] = []
    for numeric in resolve_all(address):
        with ExitStack() as stack:
            try:
                link = stack.enter_context(
                    ZmqSpoke(numeric.zmq, master_key, keys, name, hub_name=MASTER, plane=plane, ticket=ticket)
                )
                state = link.monitor.wait(timeout_s)
                if state is LinkState.UP:
                    stack.pop_all()
                    return link
                failures.append(explain(shown or str(address), numeric, state, name))
            except (UserError, PeerError) as error:
                failures.append(error)
    raise next((error for error in failures if isinstance(error, PeerError)), failures[0])


def who_is_at(address: Address, master_key: str) -> Found:
    """Returns who answers at the host's addresses. Tries each for 3 s."""
    keys = CurveKeys.generate()  # this worker's own may still be held by a silent connection
    try:
        addresses = resolve_all(address)
    except UserError:  # the name is unknown
        return "nobody"
    who: Found = "nobody"
    for numeric in addresses:
        name = peer_name(keys.public)
        try:
            spoke = ZmqSpoke(numeric.zmq, master_key, keys, name, hub_name=MASTER, plane=CONTROL)
        except UserError:  # an address that no socket of this machine takes
            continue
        with closing(spoke):
            state = spoke.monitor.wait(3.0)
        if state is LinkState.UP:
            return "the master"
        if state is LinkState.REFUSED:
            who = "somebody"
    return who


def enrol(link: ZmqSpoke, host: str, secret: str = "", timeout_s: float = 15.0) -> Enrolled:
    """Joins with a token's `secret`, or as a member without one."""
    deadline = time.monotonic() + timeout_s
    link.send(introduction(host, secret), timeout_s=min(timeout_s, 3.0))
    gone = "the master went away while this worker joined: try again"
    silent = f"the master does not answer (waited {timeout_s:.0f} s): see its log, or try again"
    while True:
        match hear(link, deadline, gone, silent):
            case Enrolled() as enrolled:
                return enrolled
            case Refused(kind=kind, message=words):
                raise (PeerError if kind == "limited" else UserError)(words)


def hear(link: ZmqSpoke, deadline: float, gone: str, silent: str) -> Message:
    """Returns the next message. Raises PeerError with the text `gone` (broken link) or `silent` (deadline)."""
    while (remaining_s := deadline - time.monotonic()) > 0:
        up = link.monitor.poll() is LinkState.UP
        envelope = link.recv(min(_SLICE_S, remaining_s) if up else 0.0)
        if envelope is not None:
            return envelope.message
        if not up:  # messages from before the break have been read
            raise PeerError(gone)
    raise PeerError(silent)


def explain(address: str, numeric: Address, state: LinkState, name: str) -> UserError | PeerError:
    if state is LinkState.REFUSED:
        return PeerError(
            f"the master at {address} does not let this worker in: {name} was revoked, as 'tpiedge nodes --all' there "
            f"then shows ({NEW_KEY}), or too many newcomers wait (try again in a minute)"
        )
    found = probe(numeric.host, numeric.port, _PROBE_S)
    if found is Listener.OTHER:
        return UserError(f"what answers at {address} is not a tpiedge master: check the port")
    if found is Listener.CURVE and state is LinkState.FAILED:
        return UserError(
            f"{address} is a tpiedge master with another key: this is another cluster, or the master was set up anew; "
            "get a new token with 'tpiedge token create' there"
        )
    words = {
        Listener.CURVE: f"{address} answers, but too slowly to connect: is the network or the master busy?",
        Listener.NOBODY: f"nothing answers at {address} (connection refused): is the master running there?",
        Listener.UNREACHABLE: f"nothing answers at {address}: is the computer on, the master running, and the port "
        "open in its firewall?",
    }
    return PeerError(words[found])
