"""An input must lead to a value or a refusal of one line, within a second of processor time and 64 MiB.

Only the memory of the one input counts: garbage of earlier inputs is collected before it, and the rest is not counted.
So an input reaches the limit by itself, which ends a process whose libraries cannot bear that. The memory that 2000
inputs leave behind for good must not exceed 64 MiB.
"""

import ctypes
import gc
import re
import resource
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.parser import Parser

LIMIT_S = 1.0
MEMORY = 64 << 20
_WINDOW = 2000
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
    """An examiner of one parser. It limits the memory of its process, which does nothing else."""

    def __init__(self, parser: Parser, scratch: Path) -> None:
        self._parser = parser
        self._read = parser.open(scratch)
        self._outcomes: set[str] = set()
        self._count = 0
        self._reading = False
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._window_began = 0
        self._most = resource.getrlimit(resource.RLIMIT_AS)[1]
        self.accepted = False  # whether the last input was in order
        signal.signal(signal.SIGVTALRM, self._expire)
        gc.collect()
        gc.freeze()  # later looks see no more than what the inputs made

    def examine(self, data: bytes) -> tuple[Finding | None, bool]:
        """Returns a finding or None, and whether the outcome is new."""
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
        return finding or self._kept(), new

    @contextmanager
    def _limits(self) -> Iterator[None]:
        """Limits time and memory of the parser alone, not of making inputs and checking outcomes."""
        # An error and the frame that holds it keep each other, and with them all that the frame names. Python looks for
        # such by their number: dozens of tokenizers, of megabytes that it does not see, were there at once.
        gc.collect()
        ceiling = _address_space() + MEMORY
        signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
        resource.setrlimit(resource.RLIMIT_AS, (ceiling, self._most))
        self._reading = True
        try:
            yield
        finally:
            self._reading = False
            resource.setrlimit(resource.RLIMIT_AS, (self._most, self._most))
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _kept(self) -> Finding | None:
        """Returns a finding if a window ends and its inputs left behind more memory than the limit."""
        self._count += 1
        if self._count % _WINDOW != 1:  # what the first input needs for good, every input does
            return None
        gc.collect()
        if self._trim is not None:
            self._trim(0)
        began, self._window_began = self._window_began, _address_space()
        grown = self._window_began - began
        if began and grown > MEMORY:
            return Finding("memory is not given back", f"{grown} bytes after {_WINDOW} inputs")
        return None

    def _expire(self, *_: object) -> None:
        if self._reading:  # Python may come to it when all is done
            raise TooSlow(f"more than {LIMIT_S:g} s")


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _finding(error: BaseException) -> Finding:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/tests/fuzz/" not in frame.filename] or frames
    last = ours[-1] if ours else None
    place = f"{Path(last.filename).name}:{last.lineno}" if last else "?"
    return Finding(f"{type(error).__name__} at {place}", "".join(traceback.format_exception(error))[-3000:])
