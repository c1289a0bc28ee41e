"""Stop strings in a stream of text pieces."""

from collections.abc import Sequence

from tpiedge.errors import UserError


class StopMatcher:
    """Cuts a stream at the first stop string.

    "First" is the one that is complete first; of several that end together, the one that starts first. So
    the result does not depend on how the text is cut into pieces. The stop string itself is not part of the
    output. Raises UserError for an empty stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise UserError("a stop string is empty; leave it out")
        self._stops = tuple(dict.fromkeys(stops))
        self._first = {stop[0] for stop in self._stops}
        self._held = ""
        self._stopped = False
        #: The one that ended the stream; "" before.
        self.found = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """(text to show, whether a stop string was found). What could begin a stop string is held back."""
        if self._stopped:
            return "", True
        text = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            end, begin = min(found)
            self._held, self._stopped, self.found = "", True, text[begin:end]
            return text[:begin], True
        cut = len(text) - self._partial(text)
        self._held = text[cut:]
        return text[:cut], False

    def finish(self) -> str:
        """The text still held back, when the stream ends by itself."""
        held, self._held = self._held, ""
        return held

    def _partial(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for at in range(max(0, len(text) - longest), len(text)):
            if text[at] in self._first and any(stop.startswith(text[at:]) for stop in self._stops):
                return len(text) - at
        return 0
