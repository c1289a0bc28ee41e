"""The tokens of an answer to its text, up to a stop string."""

from collections.abc import Sequence

from tpiedge.model.detokenizer import Detokenizer
from tpiedge.model.stops import StopMatcher
from tpiedge.model.tokenizer import Tokenizer


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
