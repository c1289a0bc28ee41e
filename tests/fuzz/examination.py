"""What an input must lead to: a value or a refusal of one line, within a second of processor time and 64 MiB."""

import re
import resource
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.parser import Parser

__all__ = ["LIMIT_S", "MEMORY", "Examiner", "Finding"]

LIMIT_S = 1.0
MEMORY = 64 << 20
_REBASED_EVERY = 2000
_MAX_LINE = 1500
_VARYING = re.compile(r"'[^']*'|\"[^\"]*\"|[\d.]+")


class TooSlow(BaseException):
    """A second of processor time has passed."""


@dataclass(frozen=True)
class Finding:
    """`kind` is the same for inputs that break the same thing."""

    kind: str
    details: str


class Examiner:
    """Of one parser, in a process that does nothing else: it limits its own memory."""

    def __init__(self, parser: Parser, scratch: Path) -> None:
        self._parser = parser
        self._read = parser.open(scratch)
        self._outcomes: set[str] = set()
        self._count = 0
        self._reading = False
        self._ceiling = 0
        self._most = resource.getrlimit(resource.RLIMIT_AS)[1]
        self.accepted = False  # whether the last input was in order
        signal.signal(signal.SIGVTALRM, self._expire)

    def examine(self, data: bytes) -> tuple[Finding | None, bool]:
        """What is wrong, and whether the parser said something that it had not said before."""
        finding, outcome = None, "read"
        try:
            with self._limits():
                self._read(data)
        except self._parser.refuses as error:
            text = str(error)
            outcome = f"{type(error).__name__} {_VARYING.sub('', text)}"
            if not text or len(text) > _MAX_LINE or not text.isprintable():
                finding = Finding(f"not one short line: {type(error).__name__}", repr(text))
        except (TooSlow, MemoryError) as error:
            outcome = type(error).__name__
            if not self._parser.confined:
                finding = _finding(error)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            outcome, finding = type(error).__name__, _finding(error)
        self.accepted = outcome == "read"
        new = outcome not in self._outcomes
        self._outcomes.add(outcome)
        return finding, new

    @contextmanager
    def _limits(self) -> Iterator[None]:
        """What making inputs and judging outcomes takes is not the parser's."""
        if self._count % _REBASED_EVERY == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            self._ceiling = pages * resource.getpagesize() + MEMORY
        self._count += 1
        signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
        resource.setrlimit(resource.RLIMIT_AS, (self._ceiling, self._most))
        self._reading = True
        try:
            yield
        finally:
            self._reading = False
            resource.setrlimit(resource.RLIMIT_AS, (self._most, self._most))
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _expire(self, *_: object) -> None:
        if self._reading:  # Python may come to it when all is done
            raise TooSlow(f"more than {LIMIT_S:g} s")


def _finding(error: BaseException) -> Finding:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/tests/fuzz/" not in frame.filename] or frames
    last = ours[-1] if ours else None
    place = f"{Path(last.filename).name}:{last.lineno}" if last else "?"
    return Finding(f"{type(error).__name__} at {place}", "".join(traceback.format_exception(error))[-3000:])
