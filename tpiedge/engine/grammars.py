"""What grammars allow of answers, asked of `grammar_child.py`, a process beside rank 0.

A request's grammar is compiled while other requests go on. While a step is computed, the child finds out which tokens
may come next, also after each token that the step guesses, so that a step rarely waits for it.

Laws:
1. An answer that ends by itself is a text of its grammar; one that ends otherwise is the beginning of one.
2. A request whose grammar is wrong, or takes more time or memory than it may, is refused, and no other is hurt: beside
   others each mask may take `_MASK_S` of a processor, or a part of its step, and all of them `_SLACK_S` more.
3. What is allowed depends on the grammar and the tokens of the answer alone: another epoch goes on where one ended.
4. A grammar of which an answer has begun is not refused for the time that it takes to get there again, unless that is
   many times as long; and none for that which the process takes to get ready.
"""

import contextlib
import json
import select
import socket
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from tpiedge.child_environment import child_environment
from tpiedge.engine.sampler import TokenMask
from tpiedge.engine.sampling import NO_GRAMMARS, grammars_installed
from tpiedge.errors import GrammarRefused, UserError
from tpiedge.sanitise import sanitised_line
from tpiedge.wire.requests import GenerationRequest, Grammar

__all__ = ["AnswerConstraint", "Constraint", "Grammars", "await_any"]

_CHILD: Final = "tpiedge.engine.grammar_child"
#: How long the child may take until it has read the tokenizer; then a grammar until its first mask, and one of which an
#: answer has begun; and an answer of the child. All that comes before a mask is less than a request may stand still.
_READY_S: Final = 25.0
_COMPILE_S: Final = 20.0
_AGAIN_S: Final = 30.0
_ANSWER_S: Final = 10.0
#: What masks may cost of a processor where others share the steps: each of them, or this part of the step, and beyond
#: that in all, until it was made up for.
_MASK_S: Final = 0.005
_PART: Final = 0.1
_SLACK_S: Final = 1.0
#: How long a step waits for the tokens that a grammar forces, which save steps.
_FORCED_S: Final = 0.002
_HEAD: Final = 5
_RECEIVED: Final = 1 << 18
_MAX_WHY: Final = 400


class AnswerConstraint(Protocol):
    """Keeps one answer to what it is to be. Methods may raise UserError where the request is refused after all."""

    def fileno(self) -> int:
        """Of what is readable when there is something to take."""
        ...

    def ready(self) -> bool:
        """Whether the answer may begin."""
        ...

    def forced(self) -> Sequence[int]:
        """The tokens that come next whatever the model says, as far as that is known."""
        ...

    def guess(self, ids: Sequence[int]) -> None:
        """These tokens may be drawn one after the other: what is allowed after each of them will be asked."""
        ...

    def masks(self, *, shared: bool) -> Iterator[TokenMask | None]:
        """What may be drawn next; then after each token that was guessed, as far as that is known. None allows all.
        `shared`: whether other answers wait for it, too."""
        ...

    def accept(self, tokens: Sequence[int]) -> None:
        """These tokens were drawn."""
        ...

    def close(self) -> None:
        """Nothing more will be asked."""
        ...


class Grammars:
    """Of one model with `rows` tokens, whose tokenizer is in `folder`. Starts its process with the first grammar. For
    one thread."""

    def __init__(self, folder: Path, rows: int) -> None:
        self._folder = folder
        self._rows = rows
        self._child: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._end = 0

    def begin(self, request: GenerationRequest, *, again: bool) -> "Constraint":
        """Has the grammar of the request compiled. `again`: whether an answer has begun with it, also one that is not
        the grammar's from its beginning on. Raises GrammarRefused, or UserError, where that cannot be."""
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
        try:
            ours = self._session(request.stop_ids[0])
        except OSError as error:
            raise UserError(
                f"this machine has no room for the process of a grammar: {error.strerror}"
            ) from None
        return Constraint(ours, request, request.grammar, self._end, self._rows, again=again)

    def _session(self, end: int) -> socket.socket:
        """The link to a new process of its own. Raises OSError."""
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as undone, theirs:
            undone.callback(ours.close)
            try:
                self._hand_over(theirs, end)
            except OSError:  # it has ended since
                self.close()
                self._hand_over(theirs, end)
            undone.pop_all()
        return ours

    def close(self) -> None:
        """Ends the process; those of grammars that are still in use end with their constraints."""
        if self._link is not None:
            self._link.close()
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        self._link = self._child = None

    def _hand_over(self, session: socket.socket, end: int) -> None:
        self._link = self._link or self._start(end)
        socket.send_fds(self._link, [b"s"], [session.fileno()])

    def _start(self, end: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._end = end
        fd = theirs.fileno()
        arguments = [str(fd), str(self._folder), str(self._rows), str(end)]
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", _CHILD, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=child_environment(),
                pass_fds=(fd,),
            )
        return ours


class Constraint:
    """An AnswerConstraint: of a grammar, from the answer's beginning to its end. All methods raise GrammarRefused where
    the grammar is refused."""

    def __init__(
        self,
        link: socket.socket,
        request: GenerationRequest,
        grammar: Grammar,
        child_end: int,
        rows: int,
        now: Callable[[], float] = time.monotonic,
        *,
        again: bool,
    ) -> None:
        """`child_end`: the token that the child takes for the answer's end, in place of the request's own. `now` gives
        seconds. `again`: as of Grammars.begin."""
        self._link = link
        self._rows = rows
        self._now = now
        self._stop_ids = frozenset(request.stop_ids)
        self._end_ids = self._stop_ids | {child_end}
        self._link.setblocking(False)
        self._unsent = b""
        self._received = bytearray()
        self._forced: tuple[int, ...] | None = None
        self._mask: TokenMask | None = None
        self._following: list[TokenMask] | None = []
        self.kept = 0
        """How many of the tokens that were given to the last restart were the grammar's before its text might end."""
        self._compile_s = _AGAIN_S if again else _COMPILE_S
        self._deadline = now() + _READY_S
        self._is_ready = False
        #: Of a processor: what was told since tokens were drawn last, and how much more than allowed all was.
        self._cost_s = self._debt_s = 0.0
        self._drawn_at = now()
        asked = {
            "kind": grammar.kind,
            "text": grammar.text,
            "answer": request.answer_ids,
            "again": again,
            "usual": grammar.begins is None,
        }
        self._send(b"g", json.dumps(asked).encode("ascii"))

    def fileno(self) -> int:
        return self._link.fileno()

    def ready(self) -> bool:
        """Whether the grammar is compiled."""
        return self._mask is not None or self._await(lambda: self._mask is not None, 0.0)

    def forced(self) -> Sequence[int]:
        self._await(lambda: self._forced is not None, _FORCED_S)
        return self._forced or ()

    def guess(self, ids: Sequence[int]) -> None:
        if ids:
            self._following = None
            self._send(b"d", array("I", ids).tobytes())

    def masks(self, *, shared: bool) -> Iterator[TokenMask]:
        """After the guesses up to one that is not allowed."""
        done = self._await(lambda: self._mask is not None and self._following is not None, _ANSWER_S)
        if not done or self._mask is None or self._following is None:
            raise _too_much()
        self._account(1 + len(self._following), shared=shared)
        yield self._mask
        yield from self._following

    def accept(self, tokens: Sequence[int]) -> None:
        self._renew(b"a", tokens, self._now() + _ANSWER_S)

    def restart(self, tokens: Sequence[int]) -> None:
        """Goes back to the beginning, and from there on with those of these tokens, which an earlier epoch drew, that
        are `kept`, within the time that the grammar has. Once the last mask has come."""
        self._renew(b"b", tokens, self._deadline if tokens else self._now() + _ANSWER_S)

    def close(self) -> None:
        """Ends its process."""
        self._link.close()

    def _renew(self, letter: bytes, tokens: Sequence[int], deadline: float) -> None:
        """After which something else is allowed."""
        self._forced = self._mask = None
        self._following = []
        self._deadline = deadline
        self._send(letter, array("I", tokens).tobytes())

    def _account(self, masks: int, *, shared: bool) -> None:
        """Of what they cost; in between no other answer is held up."""
        step_s, self._drawn_at = self._now() - self._drawn_at, self._now()
        cost_s, self._cost_s = self._cost_s, 0.0
        if shared:
            self._debt_s = max(0.0, self._debt_s + cost_s - max(_MASK_S * masks, _PART * step_s))
        if self._debt_s > _SLACK_S:
            raise GrammarRefused(
                "the grammar is refused: beside other answers it takes more than "
                f"{_MASK_S * 1e3:g} ms of a processor for each token; give a smaller one"
            )

    def _send(self, letter: bytes, body: bytes) -> None:
        """What does not fit on the way at once, as a long answer so far, goes later: the child may not have begun."""
        self._unsent += len(body).to_bytes(4, "little") + letter + body
        self._flush()

    def _flush(self) -> None:
        try:
            self._unsent = self._unsent[self._link.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._take()  # why it has ended may have come before
            raise _too_much() from None

    def _await(self, enough: Callable[[], bool], limit_s: float) -> bool:
        """Whether there is `enough`, within that time."""
        until = self._now() + limit_s
        while not enough():
            now = self._now()
            unsent = [self._link] if self._unsent else []
            readable, writable, _ = select.select([self._link], unsent, [], max(0.0, until - now))
            if readable:
                self._take()
            elif writable:
                self._flush()
            elif self._mask is None and now > self._deadline:
                raise _too_much() if self._is_ready else _not_ready()
            elif now >= until:
                return False
        return True

    def _take(self) -> None:
        try:
            part = self._link.recv(_RECEIVED)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            raise _too_much()
        self._received += part
        while len(self._received) >= _HEAD:
            end = _HEAD + int.from_bytes(self._received[:4], "little")
            if len(self._received) < end:
                return
            letter, body = self._received[4:_HEAD], bytes(self._received[_HEAD:end])
            del self._received[:end]
            self._understand(bytes(letter), body)

    def _understand(self, letter: bytes, body: bytes) -> None:
        match letter:
            case b"r":
                self._is_ready = True
                self._deadline = self._now() + self._compile_s
            case b"f":
                forced = array("I", body).tolist()
                within = next((i for i, token in enumerate(forced) if token >= self._rows), len(forced))
                self._forced = tuple(forced[:within])
            case b"c":
                self._cost_s += int.from_bytes(body, "little") / 1e6
            case b"k":
                self.kept = int.from_bytes(body, "little")
            case b"m":
                self._mask = self._mask_of(np.frombuffer(body, np.uint8))
            case b"d":
                size = 1 + len(self._mask) if self._mask is not None else 1
                following = np.frombuffer(body, np.uint8).reshape(-1, size)
                self._following = [self._mask_of(one) for one in following]
            case _:
                why = sanitised_line(body.decode(errors="replace"), _MAX_WHY)
                raise GrammarRefused(f"the grammar is refused: {why}")

    def _mask_of(self, said: TokenMask) -> TokenMask:
        """With the request's own end tokens, where the answer may end."""
        mask = said[1:].copy()
        for token in self._end_ids:
            _set(mask, token, bool(said[0]) and token in self._stop_ids)
        return mask


def await_any(constraints: Sequence[AnswerConstraint], limit_s: float) -> None:
    """Returns when there is something to take for one of them, or after that time; at once where there are none."""
    if constraints:
        select.select(constraints, [], [], limit_s)


def _set(mask: TokenMask, token: int, allowed: bool) -> None:
    if token // 8 < len(mask):
        bit = np.uint8(1 << token % 8)
        mask[token // 8] = mask[token // 8] | bit if allowed else mask[token // 8] & ~bit


def _too_much() -> GrammarRefused:
    return GrammarRefused("the grammar is refused: it takes too much time or memory; give a smaller one")


def _not_ready() -> UserError:
    return UserError(f"the process of a grammar was not ready within {_READY_S:g} s: try again later")
