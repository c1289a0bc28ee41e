"""Compiles grammars and computes token masks, without torch, in a process per grammar.

Grammars may be hostile, so children have limits. A child has two sockets. One has frames. The other socket has exit
status and CPU time (`FATE`). Shutting it ends the child.

Frames are as in `text_child.py`, with an answer's number (0: the grammar). Integers have 32 bits:
- received: `g` (JSON), `a` (drawn tokens), `d` (guessed tokens), `b` (restart tokens), `x` (end);
- sent: `r` (pid), `y` (compiled; microseconds), `e` (error);
- sent after `g`, `a`, `b`: `f` (number of replayed tokens; forced tokens), `m` (mask); after `d`: `d` (masks).
  Microseconds precede masks. A mask has a byte (may the answer end?) and a bit per token.
"""

import array
import contextlib
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tpiedge.engine.grammar_process import FATE
from tpiedge.lifeline import die_with_parent
from tpiedge.model.text_child import limit_memory, limit_time, own_memory, receive, send
from tpiedge.model.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

#: CPU seconds: to compile, to compile and catch up where an answer has begun, and for one frame.
_COMPILE_S = 5.0
_AGAIN_S = 25.0
_FRAME_S = 1.0
_READ_S = 120.0
_READ_MEMORY = 4 << 30
#: Memory of a child beside the memory that it shares with the others.
_MEMORY = 512 << 20
_STACK = 8 << 20
#: A tenth of the steps' priority: a late mask delays its own answer alone.
_NICE = 10
#: Lexer states (1 to 2 kB each), symbols of a grammar, and work of a step (14,000 or 20,000 take a millisecond).
_LEXER_STATES = 50_000
_SYMBOLS = 200_000
_LEXER_FUEL = 400_000
_ITEMS = 50_000
#: The text before a grammar that is nested at the end of another one.
_NESTED = "%lark {\n"


def main() -> None:
    die_with_parent()
    folder, rows, end = sys.argv[1:4]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _Nursery(socket.socket(fileno=0), _vocabulary(Path(folder), int(rows), int(end))).run()


class _Nursery:
    """Forks a child for each pair of sockets that `link` brings. Reaps the children."""

    def __init__(self, link: socket.socket, vocabulary: "LLTokenizer | str") -> None:
        self._link = link
        self._vocabulary = vocabulary
        self._poll = select.poll()
        self._poll.register(link, select.POLLIN)
        #: The child's pid and its watch, by the watch's file number.
        self._children: dict[int, tuple[int, socket.socket]] = {}

    def run(self) -> None:
        running = True
        while running:
            for fd, _ in self._poll.poll():
                if fd in self._children:
                    self._end(fd)
                else:
                    running = self._take()
        for pid, _ in self._children.values():
            os.kill(pid, signal.SIGKILL)

    def _end(self, fd: int) -> None:
        pid, watch = self._children.pop(fd)
        self._poll.unregister(fd)
        os.kill(pid, signal.SIGKILL)  # not reaped yet, so the pid is still its own
        _, status, used = os.wait4(pid, 0)
        with watch, contextlib.suppress(OSError):
            spent = int(1e6 * (used.ru_utime + used.ru_stime))
            watch.send(FATE.pack(os.waitstatus_to_exitcode(status), spent))

    def _take(self) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(self._link, 1, 2)
        except ConnectionError:
            return False
        ends = [socket.socket(fileno=fd) for fd in fds]
        if len(ends) == 2:
            parent = os.getpid()
            with contextlib.suppress(OSError):
                pid = os.fork()
                if pid == 0:
                    self._leave(ends[0], parent)
                watch = ends.pop()
                self._children[watch.fileno()] = pid, watch
                self._poll.register(watch, select.POLLIN)
        for one in ends:
            one.close()
        return bool(data)

    def _leave(self, session: socket.socket, parent: int) -> NoReturn:
        """Runs the child, then exits: the parent's code must not run here."""
        try:
            die_with_parent()
            if os.getppid() == parent:
                self._link.close()
                for _, watch in self._children.values():
                    watch.close()
                _serve(session.fileno(), self._vocabulary)
                os._exit(0)
        finally:
            os._exit(1)


class _TokenizerWrapper:
    def __init__(self, tokenizer: Tokenizer, end: int) -> None:
        self._tokenizer = tokenizer
        self.tokens = tokenizer.all_bytes()
        self.special_token_ids = sorted(tokenizer.special_ids)
        self.eos_token_id = end
        self.bos_token_id = tokenizer.bos_id
        self.greedy: Callable[[str], list[int]] = lambda _: []  # for texts that the tokenizer would change

    def __call__(self, text: str) -> list[int]:
        # Some tokenizers put a space before a text, but not within one.
        for before in ("", "\n"):
            skipped = len(self._tokenizer.encode(before, add_special=False))
            ids = self._tokenizer.encode(before + text, add_special=False)[skipped:]
            if b"".join(self.tokens[token] for token in ids) == text.encode():
                return ids
        return self.greedy(text)


def _vocabulary(folder: Path, rows: int, end: int) -> "LLTokenizer | str":
    """Returns the vocabulary of `rows` tokens, or the text of an error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    known = [limit for limit in (_READ_MEMORY, soft, hard) if limit != resource.RLIM_INFINITY]
    try:
        from llguidance import LLTokenizer, TokenizerWrapper

        limit_time(_READ_S)
        resource.setrlimit(resource.RLIMIT_AS, (min(known), hard))
        wrapped = _TokenizerWrapper(Tokenizer.open(folder, here=True), end)
        most = max(rows, len(wrapped.tokens))
        found = LLTokenizer(TokenizerWrapper(wrapped), n_vocab=most, slices=LLTokenizer.json_slices())
        wrapped.greedy = found.greedy_tokenize
        return found
    except Exception as error:
        return f"the model's tokenizer cannot be used with grammars ({error})"
    finally:
        limit_time(0.0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _serve(link: int, vocabulary: "LLTokenizer | str") -> None:
    limit_memory(own_memory() + _MEMORY)
    resource.setrlimit(resource.RLIMIT_STACK, (_STACK, _STACK))
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    try:
        if isinstance(vocabulary, str):
            raise ValueError(vocabulary)
        send(link, b"r", os.getpid().to_bytes(4, "little"))
        request = json.loads(receive(link)[2])
        limit_time(_AGAIN_S if request["again"] else _COMPILE_S)
        matcher = _matcher(vocabulary, request["kind"], request["text"])
        send(link, b"y", _micros(time.process_time()))
        answers: dict[int, _FollowedAnswer] = {}
        while True:
            letter, number, body = receive(link)
            if letter == b"x":
                answers.pop(number, None)
                continue
            try:
                if letter == b"g":
                    answers[number] = _FollowedAnswer(matcher, json.loads(body))
                    letter, body = b"a", b""
                if number in answers:  # else it was refused
                    for said in answers[number].frames(letter, array.array("I", body)):
                        send(link, *said, number)
            except ValueError as error:
                send(link, b"e", str(error).encode(errors="replace"), number)
    except (EOFError, ConnectionError):
        return
    except Exception as error:
        send(link, b"e", str(error).encode(errors="replace"))


class _FollowedAnswer:
    def __init__(self, grammar: "LLMatcher", request: dict[str, Any]) -> None:
        limit_time(_AGAIN_S if request["again"] else _COMPILE_S)
        self._matcher = grammar.deep_copy()
        self._usual = request["usual"]
        if not self._matcher.consume_tokens(request["answer"]):
            raise ValueError(f"the answer so far is none of the grammar's: {self._matcher.get_error()}")

    def frames(self, letter: bytes, ids: "array.array[int]") -> Iterator[tuple[bytes, bytes]]:
        matcher, kept = self._matcher, 0
        limit_time(_AGAIN_S if letter == b"b" and ids else _FRAME_S)
        before_s = time.process_time()
        if letter == b"d":
            masks = self._masks_after(ids)
        else:
            if letter == b"b":
                kept = self._replay(ids)
                before_s = time.process_time()
            else:
                matcher.consume_tokens(list(ids))
            _check(matcher)
            forced = matcher.compute_ff_tokens()
            yield b"f", array.array("I", [kept, *forced]).tobytes()
            letter, masks = b"m", _mask(matcher, forced if self._usual else ())
        yield letter, _micros(time.process_time() - before_s) + masks

    def _masks_after(self, ids: "array.array[int]") -> bytes:
        matcher, masks = self._matcher, b""
        allowed = matcher.validate_tokens(list(ids))
        for token in ids[:allowed]:
            matcher.consume_token(token)
            masks += _mask(matcher, matcher.compute_ff_tokens() if self._usual else ())
        if allowed and not matcher.rollback(allowed):
            _check(matcher)
        return masks

    def _replay(self, ids: "array.array[int]") -> int:
        """Restarts the grammar with `ids`, up to a place where its text may end. Returns the number of used tokens."""
        self._matcher.reset()
        for kept, token in enumerate(ids):
            if self._matcher.is_accepting():
                return kept
            self._matcher.consume_token(token)
            _check(self._matcher)
        return len(ids)


def _micros(seconds: float) -> bytes:
    return int(1e6 * seconds).to_bytes(4, "little")


def _matcher(vocabulary: "LLTokenizer", kind: str, text: str) -> "LLMatcher":
    from llguidance import LLMatcher, LLParserLimits
    from llguidance.gbnf_to_lark import any_to_lark

    # Python and most models write JSON so. Spaces are fixed: a confused model would write them without end.
    spaces: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    if kind == "json":
        grammar = LLMatcher.grammar_from_json_schema(text, defaults=spaces)
    elif kind == "regex":
        grammar = LLMatcher.grammar_from_regex(text)
    else:
        # The nested grammar may be llama.cpp's, too.
        outer, nested, inner = text.partition(_NESTED) if text.endswith("}") else ("", "", "")
        lark = f"{outer}{nested}{any_to_lark(inner[:-1])}}}" if nested else any_to_lark(text)
        grammar = LLMatcher.grammar_from_lark(lark)
    limits = LLParserLimits(
        step_lexer_fuel=_LEXER_FUEL,
        step_max_items=_ITEMS,
        max_lexer_states=_LEXER_STATES,
        max_grammar_size=_SYMBOLS,
        verbose_errors=False,
    )
    matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=limits)
    _check(matcher)
    return matcher


def _mask(matcher: "LLMatcher", forced: Sequence[int]) -> bytes:
    """Returns the next token's mask. It allows only the first forced token, if any."""
    mask = matcher.compute_bitmask()
    _check(matcher)
    if forced:
        only = bytearray(len(mask))
        only[forced[0] // 8] = 1 << forced[0] % 8
        return b"\0" + only
    return bytes((matcher.is_accepting(),)) + mask


def _check(matcher: "LLMatcher") -> None:
    if matcher.is_error():
        raise ValueError(matcher.get_error())


if __name__ == "__main__":
    main()
