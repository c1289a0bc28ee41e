"""Talking to a running switch, over the socket that it listens on."""

import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tpiedge.errors import ResourceError, UserError

_TIMEOUT_S: Final = 5.0
_RECEIVE_BYTES: Final = 65536


class SwitchClient:
    """Each call is a connection of its own and takes at most `timeout_s`.

    Raises UserError for what the switch refuses, ResourceError where no switch answers.
    """

    def __init__(self, path: Path, timeout_s: float = _TIMEOUT_S) -> None:
        self._path = path
        self._timeout_s = timeout_s

    def counters(self) -> dict[str, Any]:
        """`links`: of each link by name LINK_COUNTERS; `totals`: TOTALS, both as in library.py."""
        return self._ask({"do": "counters"})

    def set_links(self, links: Mapping[str, Mapping[str, float | None]]) -> None:
        """Changes links: by name what changes, as in SwitchLink. In force on return, all of it or nothing."""
        self._ask({"do": "set", "links": {name: dict(changes) for name, changes in links.items()}})

    def stop(self) -> None:
        """The switch ends soon after."""
        self._ask({"do": "stop"})

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = json.loads(self._exchange(json.dumps(request).encode() + b"\n"))
        except (OSError, ValueError) as error:
            raise ResourceError(
                f"the switch at {self._path} does not answer ({error or type(error).__name__}): "
                "'tpiedge testbed status' says whether it runs"
            ) from None
        if "error" in answer:
            raise UserError(str(answer["error"]))
        return dict(answer)

    def _exchange(self, line: bytes) -> bytes:
        deadline = time.monotonic() + self._timeout_s
        received = b""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(self._timeout_s)
            connection.connect(str(self._path))
            connection.sendall(line)
            while not received.endswith(b"\n"):
                connection.settimeout(max(1e-3, deadline - time.monotonic()))
                more = connection.recv(_RECEIVE_BYTES)
                if not more:
                    raise OSError("it broke off")
                received += more
        return received
