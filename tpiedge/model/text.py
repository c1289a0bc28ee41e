"""The tokens of an answer to its text, up to a stop string."""

from collections.abc import Sequence

from tpiedge.errors import UserError
from tpiedge.model.tokenizer import Detokenizer, Tokenizer


class TextWriter:
    """Never gives half a character nor part of a stop string; without a tokenizer there is no text at all."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        stops: Sequence[str],
        after: Sequence[int] = (),
        marks: Sequence[str] = (),
    ) -> None:
        """`after`: the tokens that the text goes on after; without any it begins. `marks`: special tokens that are not
        left out."""
        ids = (tokenizer.token_id(mark) for mark in marks) if tokenizer else ()
        shown = frozenset(token for token in ids if token is not None)
        self._detokenizer = Detokenizer(tokenizer, shown=shown, after=after) if tokenizer else None
        self._matcher = StopMatcher(stops)
        #: Characters of the text so far, those included that are held back.
        self.length = 0

    @property
    def stop(self) -> str:
        """The stop string that is complete; "" where none is."""
        return self._matcher.found

    def push(self, token: int) -> tuple[str, bool]:
        """(text that is now certain, whether a stop string is complete)."""
        if self._detokenizer is None:
            return "", False
        text = self._detokenizer.push(token)
        self.length += len(text)
        return self._matcher.feed(text)

    def finish(self) -> tuple[str, bool]:
        """(what was held back, whether a stop string was complete in it), where the answer ends by itself."""
        if self._detokenizer is None:
            return "", False
        text, stopped = self._matcher.feed(self._detokenizer.finish())
        return (text if stopped else text + self._matcher.finish()), stopped


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
