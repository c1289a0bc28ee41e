"""Keeps answers to their grammars in processes of their own, each of which may be killed at any time.

Started by `grammars.py` (`python -P -m tpiedge.engine.grammar_child FD FOLDER ROWS END`). It reads the tokenizer in
FOLDER once, and forks for every grammar: that child compiles it, and forks for every answer: that one says which tokens
may come next. A grammar is hostile until proven otherwise: a few bytes of it can exhaust a stack, a processor or a
memory, so each child has limits of its own, a low priority, and nothing but open sockets. No torch here.

A process that forks gets two sockets for each child, over the one that it has itself: what the child speaks with, and
one on which its end is told: the status and the microseconds of a processor (`grammar_link.FATE`). Where the other end
of that is closed, the child is killed. All end with the process that started them.

A frame is its length (u32), a letter and a body. A process says `r` when it is ready, and its number (u32). That of a
grammar is sent `g`, a JSON object (kind, text, and whether an answer has begun), and says `y`, the microseconds of a
processor that it took (u32), once it is compiled. That of an answer is sent `g` (the answer so far, and whether a text
that is forced is to be spelled in its usual tokens), then `a` (tokens that were drawn) and `d` (tokens that may
follow), as u32 each, and `b`, which goes back to the beginning, with the tokens that an earlier epoch drew from there
on. After `b` comes `k`, how many of these (u32) were the grammar's before its text might end. After `g`, and after
each `a` and `k` come `f`, tokens that the grammar forces, and `m`, a mask; after `d` comes `d`, a mask for every token
that the grammar allows there. A mask is a byte that says whether the answer may end, and a bit for each token. Before
`m` and `d` comes `c`, the microseconds of a processor (u32) that were spent since the last one, but not for tokens of
an earlier epoch. `e` is why there is no more.
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
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tpiedge import oom_score
from tpiedge.engine.grammar_link import FATE, frame
from tpiedge.lifeline import die_with_parent
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.wire.limits import MAX_SEQUENCES

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

#: Seconds of CPU for a grammar, for one of which an answer has begun, until that goes on, and for the answer to one
#: frame.
_COMPILE_S = 5.0
_AGAIN_S = 25.0
_FRAME_S = 1.0
#: Seconds of CPU and memory for reading the tokenizer.
_READ_S = 120.0
_READ_MEMORY = 4 << 30
#: What the child of one grammar may take beside what it shares with the others.
_MEMORY = 512 << 20
_STACK = 8 << 20
#: Files that it may open; and, of a process that forks, beside one for each child. What runs at once ends in part while
#: others begin.
_FILES = 16
_CHILDREN = 2 * MAX_SEQUENCES
#: A low priority: a tenth of what steps have, so that a machine that is busy with other things still answers. Masks
#: that are not ready cost their own answer alone.
_NICE = 10
#: States of a lexer, of 1 to 2 kB; symbols of a grammar; the work of a step, of which a millisecond has 14,000 and
#: 20,000.
_LEXER_STATES = 50_000
_SYMBOLS = 200_000
_LEXER_FUEL = 400_000
_ITEMS = 50_000
#: What comes before a grammar that ends another one.
_NESTED = "%lark {\n"


def main() -> None:
    """Fork until the parent has ended."""
    die_with_parent()
    link, folder, rows, end = socket.socket(fileno=int(sys.argv[1])), *sys.argv[2:5]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    vocabulary = _vocabulary(Path(folder), int(rows), int(end))
    _Nursery(link).run(lambda session: _serve_grammar(session, vocabulary))


class _Nursery:
    """Forks for each two sockets that come over `link`, and looks after the children. For a process of one thread."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        #: Where the end of each child is told, by its number.
        self._watches: dict[int, socket.socket] = {}
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self, work: Callable[[socket.socket], None]) -> None:
        """Has each child do its `work`, until the link is closed: that ends all of them."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            for pid, watch in self._watches.items():  # first, while the numbers of files are still theirs
                if watch.fileno() in ready:
                    poll.unregister(watch)
                    os.kill(pid, signal.SIGKILL)  # not waited for yet, so that this number is its own, too
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
                self._reap(poll)
            if self._link.fileno() in ready and not self._take(poll, work):
                for pid in self._watches:
                    os.kill(pid, signal.SIGKILL)
                return

    def _take(self, poll: select.poll, work: Callable[[socket.socket], None]) -> bool:
        """Begins what is asked. Returns whether anybody is left who may ask. Where there is no room for another process
        its sockets are closed, and nobody tells why."""
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
                    self._leave(work, ends[0], parent)
                self._watches[pid] = ends.pop()
                poll.register(self._watches[pid], 0)  # the other end is closed, or nothing
        for one in ends:
            one.close()
        return bool(data)

    def _leave(self, work: Callable[[socket.socket], None], session: socket.socket, parent: int) -> NoReturn:
        """Does the child's work, and leaves nothing of the parent's, whatever happens."""
        try:
            die_with_parent()
            if os.getppid() == parent:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.close(self._woken)
                os.close(self._waker)
                for one in (self._link, *self._watches.values()):
                    one.close()
                work(session)
                os._exit(0)
        finally:
            os._exit(1)

    def _reap(self, poll: select.poll) -> None:
        """Tells of each child that has ended how it did."""
        while self._watches:
            pid, status, used = os.wait4(-1, os.WNOHANG)
            if not pid:
                return
            spent = int(1e6 * (used.ru_utime + used.ru_stime))
            with self._watches.pop(pid) as watch:
                with contextlib.suppress(KeyError):
                    poll.unregister(watch)
                with contextlib.suppress(OSError):
                    watch.send(FATE.pack(os.waitstatus_to_exitcode(status), spent))


class _TokenizerWrapper:
    """The tokenizer as llguidance wants it: bytes of all tokens, and a text's usual tokens."""

    def __init__(self, tokenizer: Tokenizer, end: int) -> None:
        self._tokenizer = tokenizer
        self.tokens = tokenizer.all_bytes()
        self.special_token_ids = sorted(tokenizer.special_ids)
        self.eos_token_id = end
        self.bos_token_id = tokenizer.bos_id

    def __call__(self, text: str) -> list[int]:
        ids = self._tokenizer.encode(text, add_special=False)
        if self._spell(ids, text):
            return ids
        # Some put a space before a text; not so within one.
        before = self._tokenizer.encode("\n", add_special=False)
        ids = self._tokenizer.encode(f"\n{text}", add_special=False)[len(before) :]
        return ids if self._spell(ids, text) else self._longest(text.encode())

    def _spell(self, ids: Sequence[int], text: str) -> bool:
        return b"".join(self.tokens[token] for token in ids) == text.encode()

    def _longest(self, data: bytes) -> list[int]:
        """The longest token that fits, one after another, for texts that the tokenizer would change."""
        found, at = [], 0
        while at < len(data):
            ends = range(min(len(data), at + self._most), at, -1)
            end = next((end for end in ends if data[at:end] in self._ids), None)
            if end is None:
                break
            found.append(self._ids[data[at:end]])
            at = end
        return found

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        special = set(self.special_token_ids)
        return {data: token for token, data in enumerate(self.tokens) if data and token not in special}

    @cached_property
    def _most(self) -> int:
        return max(map(len, self._ids), default=0)


def _vocabulary(folder: Path, rows: int, end: int) -> "LLTokenizer | str":
    """Or why there is none. A model may have more rows than its tokenizer has tokens, or fewer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    known = [limit for limit in (_READ_MEMORY, soft, hard) if limit != resource.RLIM_INFINITY]
    try:
        from llguidance import LLTokenizer, TokenizerWrapper

        _within(_READ_S)
        resource.setrlimit(resource.RLIMIT_AS, (min(known), hard))
        wrapped = _TokenizerWrapper(Tokenizer.open(folder, here=True), end)
        most = max(rows, len(wrapped.tokens))
        return LLTokenizer(TokenizerWrapper(wrapped), n_vocab=most, slices=LLTokenizer.json_slices())
    except Exception as error:
        return f"the model's tokenizer cannot be used with grammars ({error})"
    finally:
        _within(0.0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _serve_grammar(link: socket.socket, vocabulary: "LLTokenizer | str") -> None:
    """Compiles one grammar, then forks for its answers."""
    _limit()
    try:
        if isinstance(vocabulary, str):
            raise ValueError(vocabulary)
        _send(link, b"r", os.getpid().to_bytes(4, "little"))
        _, body = _receive(link)
        asked = json.loads(body)
        _within(_AGAIN_S if asked["again"] else _COMPILE_S)
        matcher = _matcher(vocabulary, asked["kind"], asked["text"])
        _within(0.0)
        _send(link, b"y", _micros(time.process_time()))
    except (EOFError, ConnectionError):
        return
    except Exception as error:
        _send(link, b"e", str(error).encode(errors="replace"))
        return
    _Nursery(link).run(lambda session: _serve_answer(session, matcher))


def _serve_answer(link: socket.socket, matcher: "LLMatcher") -> None:
    """Says what may come next in one answer, from its beginning to its end."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, _FILES))
    try:
        _send(link, b"r", os.getpid().to_bytes(4, "little"))
        spent_s = 0.0
        _, body = _receive(link)
        asked = json.loads(body)
        _within(_AGAIN_S if asked["again"] else _COMPILE_S)
        if not matcher.consume_tokens(asked["answer"]):
            raise ValueError(f"the answer so far is none of the grammar's: {matcher.get_error()}")
        usual, letter = asked["usual"], b"m"
        forced = matcher.compute_ff_tokens()
        _send(link, b"f", array.array("I", forced).tobytes())
        mask = _mask(matcher, forced if usual else ())
        while True:
            before_s, spent_s = spent_s, time.process_time()
            _send(link, b"c", _micros(spent_s - before_s))
            _send(link, letter, mask)
            letter, body = _receive(link)
            ids = array.array("I", body)
            if letter != b"b" or not ids:  # what an earlier epoch drew shares the time for the grammar
                _within(_FRAME_S)
            if letter == b"d":
                mask = _masks_after(matcher, ids, usual)
                continue
            if letter == b"b":
                kept = _replay(matcher, ids)
                spent_s = time.process_time()
                _send(link, b"k", kept.to_bytes(4, "little"))
            else:
                matcher.consume_tokens(list(ids))
            letter = b"m"
            _check(matcher)
            forced = matcher.compute_ff_tokens()
            _send(link, b"f", array.array("I", forced).tobytes())
            mask = _mask(matcher, forced if usual else ())
    except (EOFError, ConnectionError):
        return
    except Exception as error:
        _send(link, b"e", str(error).encode(errors="replace"))


def _micros(seconds: float) -> bytes:
    return int(1e6 * seconds).to_bytes(4, "little")


def _limit() -> None:
    """Bounds this process for good, and those that it forks. The system ends them first where memory is short, and
    gives them a processor last."""
    with open("/proc/self/statm", encoding="ascii") as file:
        shared = int(file.read().split()[0]) * resource.getpagesize()
    most = shared + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_STACK, (_STACK, _STACK))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES + _CHILDREN, _FILES + _CHILDREN))
    oom_score.raise_to(oom_score.ALWAYS_FIRST)
    with contextlib.suppress(OSError):
        os.nice(_NICE)


def _within(cpu_s: float) -> None:
    """The signal's default ends the process, also where no line of Python runs. 0: no limit from now on."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)


def _matcher(vocabulary: "LLTokenizer", kind: str, text: str) -> "LLMatcher":
    from llguidance import LLMatcher, LLParserLimits
    from llguidance.gbnf_to_lark import any_to_lark

    # As Python and most models write JSON. No space is free: a model that is lost would write spaces without end.
    spaces: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    if kind == "json":
        grammar = LLMatcher.grammar_from_json_schema(text, defaults=spaces)
    elif kind == "regex":
        grammar = LLMatcher.grammar_from_regex(text)
    else:
        # A grammar that ends another one may be llama.cpp's, too.
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
    """Where the grammar forces a text, and its usual tokens are given, these alone are allowed."""
    mask = matcher.compute_bitmask()
    _check(matcher)
    if forced:
        only = bytearray(len(mask))
        only[forced[0] // 8] = 1 << forced[0] % 8
        return b"\0" + only
    return bytes((matcher.is_accepting(),)) + mask


def _masks_after(matcher: "LLMatcher", ids: "array.array[int]", usual: bool) -> bytes:
    """After each of the tokens, up to the first that is not allowed. The matcher stays where it is."""
    allowed = matcher.validate_tokens(list(ids))
    masks = b""
    for token in ids[:allowed]:
        matcher.consume_token(token)
        masks += _mask(matcher, matcher.compute_ff_tokens() if usual else ())
    if allowed and not matcher.rollback(allowed):
        _check(matcher)
    return masks


def _replay(matcher: "LLMatcher", ids: "array.array[int]") -> int:
    """From the beginning on, up to where the text may end. Returns how many of the tokens were the grammar's."""
    matcher.reset()
    for kept, token in enumerate(ids):
        if matcher.is_accepting():
            return kept
        matcher.consume_token(token)
        _check(matcher)
    return len(ids)


def _check(matcher: "LLMatcher") -> None:
    if matcher.is_error():
        raise ValueError(matcher.get_error())


def _send(link: socket.socket, letter: bytes, body: bytes) -> None:
    link.sendall(frame(letter, body))


def _receive(link: socket.socket) -> tuple[bytes, bytes]:
    head = _exactly(link, 5)
    return head[4:], _exactly(link, int.from_bytes(head[:4], "little"))


def _exactly(link: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = link.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


if __name__ == "__main__":
    main()
