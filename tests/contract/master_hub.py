"""A master's control hub and its registrar, in a thread."""

import threading
from pathlib import Path

from tpiedge.host.addresses import Address, parse_address
from tpiedge.joining.registrar import Registrar, unknown_peer_policy
from tpiedge.joining.tokens import TokenStore
from tpiedge.transport.endpoint import CONTROL, LinkReset, MalformedMessage
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqHub
from tpiedge.wire.join import Enrol

MASTER = CurveKeys.generate()


class MasterHub:
    """A master's hub and registrar, served by a thread; `heard` has the messages of members."""

    def __init__(self, folder: Path) -> None:
        self.hub = ZmqHub(
            "tcp://127.0.0.1:*", MASTER, "master", {}, plane=CONTROL, unknown=unknown_peer_policy(folder)
        )
        self.registrar = Registrar(self.hub, MASTER.public, folder)
        self.tokens = TokenStore(folder)
        self.heard: list[tuple[str, object]] = []
        self.malformed = 0
        self._ends = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def address(self) -> Address:
        return parse_address(self.hub.address.removeprefix("tcp://"))

    def token(self) -> str:
        return self.tokens.create(3600.0)[1]

    def close(self) -> None:
        self._ends = True
        self._thread.join()
        self.registrar.close()
        self.hub.close()

    def _serve(self) -> None:
        while not self._ends:
            self.registrar.tick()
            self.registrar.finish_joins()
            try:
                envelope = self.hub.recv(0.02)
            except LinkReset:
                continue
            except MalformedMessage as error:
                self.malformed += 1
                self.hub.disconnect(error.peer)
                continue
            if envelope is None:
                continue
            if isinstance(envelope.message, Enrol) or not self.registrar.is_member(envelope.sender):
                self.registrar.handle(envelope.sender, envelope.message)
            else:
                self.heard.append((envelope.sender, envelope.message))
