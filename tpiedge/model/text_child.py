"""Encodes text and renders chat templates in a child process, because tokenizers and templates are untrusted. Jinja's
immutable sandbox hides Python's objects. Memory, CPU time and files are limited.

`text_process.py` starts `python -I -S text_child.py FOLDER...`. A FOLDER has packages. Standard input is a socket.
Nothing of tpiedge is imported, for a fast start.

A frame has its body's length (u32), a letter, a number (u16) and the body. A job's number limits its CPU seconds. The
body of job `O` is the tokenizer.json to open. Other jobs have JSON: `L` limits memory, `R` renders, `A` adds tokens,
`E` encodes, `C` counts. Answers: `j` has JSON, `e` has an error, `l` names the exceeded limit.
"""

import base64
import contextlib
import json
import os
import re
import signal
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

MAX_TOKEN = 1024  # characters of a token: eight times the longest in use, a run of spaces
HEAD = struct.Struct("<IcH")
_MAX_IDS = 1 << 22
_MAX_TOKEN_BYTES = 8 * MAX_TOKEN
_WORKING_MEMORY = 1 << 30  # for encoding, beside the tokenizer
_PIECE, _COUNTED_PIECE = 2048, 32_768  # characters encoded at a time to count tokens
_LOST_PER_CUT = 32  # a generous bound of tokens that the end of a piece may have cut in two
_CHECKED_AT_ONCE = 50
_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_DESCRIBED = ("TemplateError", "TemplateRuntimeError", "ValueError", "Exception", "PanicException")


def main() -> None:
    sys.path += sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tokenizer = LoadedTokenizer()
    with contextlib.suppress(EOFError):
        while True:
            letter, cpu_s, body = receive(0)
            limit_time(cpu_s)
            try:
                found = json.dumps(_done(letter, body, tokenizer), ensure_ascii=False)
                answer = b"j", found.encode("utf-8", "surrogatepass")
            except BaseException as error:  # a Rust panic is no Exception
                answer = _failure(error)
            limit_time(0.0)
            send(0, *answer)


def receive(link: int, read: Callable[[int, int], bytes] = os.read) -> tuple[bytes, int, bytes]:
    """Returns the next frame as (letter, number, body). Raises EOFError."""
    length, letter, number = HEAD.unpack(_exactly(link, HEAD.size, read))
    return letter, number, _exactly(link, length, read)


def _exactly(link: int, count: int, read: Callable[[int, int], bytes]) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = read(link, min(count - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def send(link: int, letter: bytes, body: bytes, number: int = 0) -> None:
    rest = memoryview(HEAD.pack(len(body), letter, number) + body)
    while rest:
        rest = rest[os.write(link, rest) :]


def limit_time(cpu_s: float) -> None:
    """Ends this process after `cpu_s` more seconds of CPU time; 0 means no limit."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)


def _done(letter: bytes, body: bytes, tokenizer: "LoadedTokenizer") -> object:
    if letter == b"L":
        limit_memory(int(body))
        return None
    if letter == b"R":
        return _render(json.loads(body))
    found = tokenizer.do(letter, body)
    if letter == b"A":
        limit_memory(own_memory() + _WORKING_MEMORY)
    return found


def _failure(error: BaseException) -> tuple[bytes, bytes]:
    if isinstance(error, MemoryError):
        return b"l", b"it needs too much memory"
    if isinstance(error, RecursionError):
        return b"l", b"it is nested too deeply"
    kind, text = (b"l", str(error)) if isinstance(error, _TooLong) else (b"e", _describe(error))
    return kind, text.encode("utf-8", "replace")


class _TooLong(Exception):
    """A template wrote more characters than allowed."""


def limit_memory(nbytes: int) -> None:
    """Limits this process's memory permanently, except on macOS."""
    import resource

    for kind, value in ((resource.RLIMIT_AS, nbytes), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (value, value))
    # The OOM killer ends this process first.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def own_memory() -> int:
    """Returns the bytes of this process's address space."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 1 << 40


# --- tokenizer


class LoadedTokenizer:
    def __init__(self) -> None:
        self._backend: Any = None

    def do(self, letter: bytes, body: bytes) -> Any:
        """Does a job. The first job must be `O`; others are `A`, `E` or `C`."""
        if letter == b"O":
            from tokenizers import Tokenizer

            self._backend = Tokenizer.from_buffer(body)
            self._backend.no_padding()
            self._backend.no_truncation()
            return self._added()
        value = json.loads(body)
        if letter == b"A":
            return self._add(value)
        if letter == b"E":
            return self._encode(**value)
        assert letter == b"C", letter
        return self._count_all(value)

    def _added(self) -> list[tuple[int, str, dict[str, bool]]]:
        flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
        own = self._backend.get_added_tokens_decoder()
        return [
            (number, one.content, {flag: getattr(one, flag) for flag in flags}) for number, one in own.items()
        ]

    def _add(self, tokens: Sequence[tuple[str, Mapping[str, bool]]]) -> dict[str, Any]:
        """Adds tokens. Returns `vocabulary` (text -> id), all `added` tokens, `parts` (base64 of each id's bytes) and
        `heads` (ids whose text differs at a text's beginning, with that text)."""
        from tokenizers import AddedToken

        self._backend.add_tokens([AddedToken(text, **flags) for text, flags in tokens])
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        if (longest := max(map(len, vocabulary), default=0)) > MAX_TOKEN:
            raise ValueError(f"has a token of {longest} characters; at most {MAX_TOKEN} are accepted")
        if max(vocabulary.values(), default=0) >= _MAX_IDS:
            raise ValueError(f"has a token whose number is not below {_MAX_IDS}")
        parts, heads = self._parts(vocabulary)
        self._check(parts, heads)
        listed = [base64.b64encode(part).decode() if part is not None else None for part in parts]
        return {
            "vocabulary": vocabulary,
            "added": self._added(),
            "parts": listed,
            "heads": list(heads.items()),
        }

    def _encode(self, text: str, *, special: bool, parse: bool, most: int) -> list[int] | int:
        """Returns ids, or a lower bound of their number if it exceeds `most` (0: no limit)."""
        if most and len(text) > most // 4:  # a shorter text rarely has more tokens
            count = 0
            for start in range(0, len(text), _PIECE):
                count += self._count(text[start : start + _PIECE]) - _LOST_PER_CUT
                if count > most:
                    return count
        self._backend.encode_special_tokens = not parse
        try:
            found: list[int] = self._backend.encode(text, add_special_tokens=special).ids
            return found
        finally:
            self._backend.encode_special_tokens = False

    def _count_all(self, text: str) -> int:
        count = start = 0
        while start < len(text):
            end = start + _COUNTED_PIECE
            if end < len(text):
                end = max(text.rfind(" ", start + 1, end), text.rfind("\n", start + 1, end))
                end = end if end > start else start + _COUNTED_PIECE
            count += self._count(text[start:end])
            start = end
        return count

    def _count(self, text: str) -> int:
        return len(self._backend.encode(text, add_special_tokens=False))

    def _decode(self, ids: list[int]) -> str:
        return str(self._backend.decode(ids, skip_special_tokens=False))

    def _parts(self, vocabulary: Mapping[str, int]) -> tuple[list[bytes | None], dict[int, str]]:
        from tokenizers import decoders

        parts: list[bytes | None] = [None] * (1 + max(vocabulary.values(), default=-1))
        heads: dict[int, str] = {}
        byte_level = isinstance(self._backend.decoder, decoders.ByteLevel)
        for text, number in vocabulary.items():
            spelled = _spelled_bytes(text) if byte_level else None
            if spelled is None:
                once, twice = (self._decode([number] * count) for count in (1, 2))
                spelled = _spelled_bytes(text) if "\N{REPLACEMENT CHARACTER}" in once else None
                if spelled is None:
                    # A decoder may drop the space at the start of a text, but not of the second token.
                    part = twice[len(once) :] if twice.startswith(once) else once
                    spelled = part.encode()
                    if part != once:
                        heads[number] = once
            if len(spelled) > _MAX_TOKEN_BYTES:
                raise ValueError("has a decoder that makes a long text of one token")
            parts[number] = spelled
        return parts, heads

    def _check(self, parts: Sequence[bytes | None], heads: Mapping[int, str]) -> None:
        """Raises ValueError unless `parts` and `heads` decode as the library does."""
        bytes_of = {part: number for number, part in enumerate(parts) if part is not None and len(part) == 1}
        runs = [[bytes_of.get(bytes([byte])) for byte in mark.encode() * 2] for mark in "aé你😀"]
        texts = [(part or b"").decode("utf-8", "ignore").encode() for part in parts]
        whole = [number for number, part in enumerate(parts) if part == texts[number]]
        steps = range(0, len(whole), _CHECKED_AT_ONCE)
        groups = [[*whole[at : at + _CHECKED_AT_ONCE], whole[at]] for at in steps]
        groups += [[number for number in run if number is not None] for run in runs if None not in run]
        for ids in groups:
            data, begun = b"", False
            for number in ids:
                part = parts[number] or b""
                data += heads[number].encode() if not begun and number in heads else part
                begun = begun or bool(part)
            if data.decode("utf-8", "replace") != self._decode(ids):
                raise ValueError("has a decoder that joins tokens in a way that is not known here")


def _spelled_bytes(token: str) -> bytes | None:
    """Returns the bytes that a token spells as "<0xE4>" or in GPT-2's alphabet, else None."""
    fallback = _FALLBACK.fullmatch(token)
    if fallback is not None:
        return bytes([int(fallback[1], 16)])
    table = _byte_level()
    if all(character in table for character in token):
        return bytes(table[character] for character in token)
    return None


@cache
def _byte_level() -> Mapping[str, int]:
    """Returns GPT-2's alphabet of bytes: character -> byte."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(0x100) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


# --- template


def _render(job: dict[str, Any]) -> str:
    pieces, length = [], 0
    for piece in _compiled(job["template"]).generate(**job["variables"]):
        length += len(piece)
        if length > job["characters"]:
            raise _TooLong(f"it writes more than {job['characters']} characters")
        pieces.append(piece)
    return "".join(pieces)


@lru_cache(maxsize=4)
def _compiled(template: str) -> Any:
    from datetime import datetime

    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Scope
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationTag(Extension):
        """Renders only the contents of {% generation %}...{% endgeneration %}."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            return Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    def raise_exception(message: object) -> None:
        raise TemplateError(str(message))

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag]
    )
    environment.filters["tojson"] = _tojson
    environment.globals.pop("lipsum")
    environment.globals.update(
        raise_exception=raise_exception, strftime_now=lambda form: datetime.now().strftime(form)
    )
    return environment.from_string(template)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Writes JSON without the HTML escapes of Jinja's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _describe(error: BaseException) -> str:
    line = getattr(error, "lineno", None)
    text = " ".join(str(error).split()) or type(error).__name__
    if type(error).__name__ not in _DESCRIBED:
        text = f"{type(error).__name__}: {text}"
    return (text if line is None else f"line {line}: {text}")[:300]


if __name__ == "__main__":
    main()
