"""Gets masks of allowed tokens from processes beside rank 0 (`grammar_child.py`).

1. A finished answer matches its grammar. An unfinished answer is the beginning of a match. Masks depend on grammar and
   tokens alone.
2. A wrong or too expensive grammar is refused. It hurts only requests that share its process.
3. No process outlives its requests or its parent.
"""

import json
import select
import socket
import subprocess
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from tpiedge.engine.grammar_process import (
    AGAIN_S,
    COMPILE_S,
    GrammarLink,
    GrammarProcess,
    micros,
    refused,
    starved,
)
from tpiedge.engine.sampler import TokenMask
from tpiedge.engine.sampling import NO_GRAMMARS, grammars_installed
from tpiedge.errors import GrammarRefused
from tpiedge.lifeline import child_environment
from tpiedge.model.text_process import start_linked
from tpiedge.wire.requests import GenerationRequest

#: How long a mask may take.
_ANSWER_S: Final = 10.0
#: Beside other answers a mask may take `_MASK_S` of CPU time or, if that is more, `_PART` of its step's time. All masks
#: of an answer together may take `_SLACK_S` more.
_MASK_S: Final = 0.005
_PART: Final = 0.1
_SLACK_S: Final = 1.0


class Grammars:
    """Owns the grammar processes of a model with `rows` tokens. One thread makes all calls; the processes end with
    this thread."""

    def __init__(self, folder: Path, rows: int) -> None:
        self._folder, self._rows = folder, rows
        self._shared: dict[str, GrammarProcess] = {}
        self._first: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._end = -1

    def start_compile(self, request: GenerationRequest, *, again: bool, group: str = "") -> "Constraint":
        """Starts to compile the request's grammar. `again`: the answer already has tokens. Requests of a `group` share
        a process. Raises GrammarRefused."""
        if request.grammar is None:
            raise GrammarRefused("the request has no grammar")
        if not grammars_installed():
            raise GrammarRefused(NO_GRAMMARS)
        if not (self._folder / "tokenizer.json").is_file():
            raise GrammarRefused(
                "the model has no tokenizer beside its weights: pack it again to use grammars"
            )
        if not request.stop_ids or request.ignore_eos:
            raise GrammarRefused("an answer by a grammar ends with an end token: do not ignore it")
        if self._end < 0:
            self._end = request.stop_ids[0]
        process = self._shared.get(group)
        if process is None or not process.usable:
            process = GrammarProcess(request.grammar, self._fork, again=again)
        constraint = Constraint(process, request, (self._end, self._rows), again=again)
        self._shared = {name: one for name, one in self._shared.items() if one.usable}
        if group:
            self._shared[group] = process
        return constraint

    def close(self) -> None:
        if self._first is not None:
            child, link = self._first
            link.close()
            child.kill()
            child.wait()
        self._first = None

    def _fork(self) -> GrammarLink:
        if self._first is not None:
            try:
                return GrammarLink.through(self._first[1])
            except ConnectionError:  # it has ended since
                self.close()
        module = ["-P", "-m", "tpiedge.engine.grammar_child"]
        arguments = [str(self._folder), str(self._rows), str(self._end)]
        self._first = start_linked([*module, *arguments], child_environment())
        return GrammarLink.through(self._first[1])


class Constraint:
    """Tracks an answer's place in a grammar. Methods raise GrammarRefused and ChildLost."""

    def __init__(
        self,
        process: GrammarProcess,
        request: GenerationRequest,
        model: tuple[int, int],
        now: Callable[[], float] = time.monotonic,
        *,
        again: bool,
    ) -> None:
        """`model` is (the end token that the child knows, the number of tokens)."""
        child_end, self._rows = model
        self._process = process
        self._number = process.join(self._understand)
        self._now = now
        self._stop_ids = frozenset(request.stop_ids)
        self._end_ids = self._stop_ids | {child_end}
        self._usual = request.grammar is None or request.grammar.begins is None
        self._again = again
        #: The number of the process (`GrammarProcess.begun`) that knows the answer.
        self._begun = 0
        #: Tokens accepted since the grammar began, and tokens of an unanswered restart, for a new process to continue.
        self._accepted = list(request.answer_ids)
        self._replayed: Sequence[int] | None = None
        self._guesses: Sequence[int] = ()
        self._forced: tuple[int, ...] | None = None
        self._mask: TokenMask | None = None
        self._following: list[TokenMask] | None = []
        #: Masks, and lists of masks after guesses, that the process still owes: only the last one is valid.
        self._due = self._due_following = 0
        self.kept = 0
        """How many tokens of the last restart the grammar took, up to a place where its text may end."""
        self._refused: GrammarRefused | None = None
        #: Processor seconds since tokens were last drawn, and processor seconds beyond the allowed ones so far.
        self._cost_s = self._debt_s = self._deadline = 0.0
        self._drawn_at = now()

    def links(self) -> Sequence[GrammarLink]:
        known = self._mask is not None and self._following is not None
        return () if known or self._refused is not None else self._process.links()

    def ready(self) -> bool:
        """Whether the grammar is compiled and the next token's mask has come."""
        self._advance()
        return self._mask is not None

    def known(self) -> bool:
        """Whether `masks` can yield without waiting."""
        return self.ready() and self._following is not None

    def forced(self) -> Sequence[int] | None:
        """Returns the tokens that must come next; None while they are unknown."""
        self._advance()
        return self._forced

    def guess(self, ids: Sequence[int]) -> None:
        self._guesses, self._following = ids, None if ids else []
        if ids:
            self._deadline = self._now() + _ANSWER_S
            self._ask(b"d", ids)

    def masks(self, *, shared: bool) -> Iterator[TokenMask]:
        """Yields the mask of the next token, then the mask after each allowed guess. `shared`: other answers wait for
        this one."""
        while not self.known():
            await_any([self], _ANSWER_S)
        assert self._mask is not None
        found = [self._mask, *(self._following or ())]
        step_s, self._drawn_at = self._now() - self._drawn_at, self._now()
        if shared:
            allowed_s = max(_MASK_S * len(found), _PART * step_s)
            self._debt_s = max(0.0, self._debt_s + self._cost_s - allowed_s)
        self._cost_s = 0.0
        if self._debt_s > _SLACK_S:
            raise GrammarRefused(
                "the grammar is refused: beside other answers it takes more than "
                f"{_MASK_S * 1e3:g} ms of a processor for each token; give a smaller one"
            )
        yield from found

    def accept(self, tokens: Sequence[int]) -> None:
        self._accepted += tokens
        self._renew(b"a", tokens, self._now() + _ANSWER_S)

    def restart(self, tokens: Sequence[int]) -> None:
        """Restarts the grammar. Replays `tokens` up to the first place where the text may end. Requires `ready()`. The
        child's answer sets `kept`, the number of replayed tokens."""
        self._accepted, self._replayed = [], tokens
        self._renew(b"b", tokens, self._deadline if tokens else self._now() + _ANSWER_S)

    def close(self) -> None:
        """Ends the answer; `take_spent` still works. Idempotent."""
        self._process.leave(self._number)

    def take_spent(self) -> float:
        """Returns the CPU seconds of the shared process since the last call."""
        return self._process.take_spent()

    def _renew(self, letter: bytes, tokens: Sequence[int], deadline: float) -> None:
        self._forced = self._mask = None
        self._guesses, self._following = (), []
        self._deadline = deadline
        self._ask(letter, tokens)

    def _ask(self, letter: bytes, tokens: Sequence[int], body: bytes = b"") -> None:
        self._due_following += letter == b"d"
        self._due += letter != b"d"
        if self._begun == self._process.begun:  # else `_open` sends it to the new process
            self._process.send(letter, self._number, body or array("I", tokens).tobytes())

    def _advance(self) -> None:
        if not self._process.ready():
            self._forced = self._mask = None
            self._following = None if self._guesses else []
            return
        if self._begun != self._process.begun:
            self._open()
        if self._refused is not None:
            raise self._refused
        if (self._mask is None or self._following is None) and self._now() > self._deadline:
            raise starved()

    def _open(self) -> None:
        again = self._again or bool(self._accepted)
        self._begun = self._process.begun
        self._deadline = self._now() + (AGAIN_S if self._again else COMPILE_S)
        self._due = self._due_following = 0
        request = {"answer": self._accepted, "again": again, "usual": self._usual}
        self._ask(b"g", (), json.dumps(request).encode("ascii"))
        if self._replayed is not None:
            self._ask(b"b", self._replayed)
        if self._guesses:
            self._ask(b"d", self._guesses)

    def _understand(self, letter: bytes, body: bytes) -> None:
        match letter:
            case b"f" if self._due == 1:
                kept, *forced = array("I", body)
                if self._replayed is not None:
                    self.kept, self._accepted = kept, list(self._replayed[:kept])
                    self._replayed = None
                within = next((i for i, token in enumerate(forced) if token >= self._rows), len(forced))
                self._forced = tuple(forced[:within])
            case b"m" | b"d":
                self._cost_s += micros(body) / 1e6
                self._due -= letter == b"m"
                self._due_following -= letter == b"d"
                masks = np.frombuffer(body, np.uint8, offset=4)
                if letter == b"m" and self._due == 0:
                    self._mask = self._mask_of(masks)
                elif letter == b"d" and self._due_following == 0 and self._guesses:
                    size = 1 + len(self._mask) if self._mask is not None else 1
                    self._following = [self._mask_of(one) for one in masks.reshape(-1, size)]
            case b"e":
                self._refused = refused(body)

    def _mask_of(self, said: TokenMask) -> TokenMask:
        """Corrects the mask for the request's own end tokens."""
        mask = said[1:].copy()
        for token in self._end_ids:
            if token // 8 < len(mask):
                bit, allowed = np.uint8(1 << token % 8), said[0] and token in self._stop_ids
                mask[token // 8] = mask[token // 8] | bit if allowed else mask[token // 8] & ~bit
        return mask


class _Waiting(Protocol):
    def links(self) -> Sequence[GrammarLink]: ...


def await_any(constraints: Sequence[_Waiting], limit_s: float) -> None:
    """Waits until a link is ready, at most for `limit_s`. Returns at once if a constraint has no links."""
    waiting = [one.links() for one in constraints]
    if waiting and all(waiting):
        links = {link for some in waiting for link in some}
        unsent = [room for link in links if (room := link.writes) is not None]
        select.select([link.reads for link in links], unsent, [], max(0.0, limit_s))
