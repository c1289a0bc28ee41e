"""How a client shows that it has read an answer that was sent to its end: by its next request on that connection.

That the system has taken the bytes says nothing: they may be lost with the connection, or never be read. HTTP has no
word for it, but who uses a connection again has read the response before, unless the request came before that had
ended (pipelining) or a proxy, which has many clients, speaks for another one.
"""

from collections.abc import Callable


class Acknowledgement:
    """The answer that one connection carried last."""

    def __init__(self) -> None:
        #: Whether the next request had come, if only its beginning, before the last response ended.
        self.ahead = False
        self._client: str | None = None
        self._acknowledge: Callable[[], None] | None = None

    def begin(self, client: str | None) -> None:
        """The connection's next request is of `client`; None where the connection is not one client's own."""
        acknowledge, self._acknowledge = self._acknowledge, None
        if acknowledge is not None and client is not None and client == self._client and not self.ahead:
            acknowledge()
        self._client = client

    def carry(self, acknowledge: Callable[[], None]) -> None:
        """The response to that request is an answer, of which this tells that it was read."""
        if self._client is not None:
            self._acknowledge = acknowledge
