"""The sections of a `tokenizer.json`, found without parsing its vocabulary, which is most of it.

What is accepted here is cut into its members where every parser of JSON cuts it, escapes in names included: so what is
told of them is what the library finds when it reads the file.
"""

import json
import re
from collections.abc import Iterator

from tpiedge.sanitise import quote

_MAX_MEMBERS = 100  # of an object; those in use have a dozen
_MAX_FIELD = 100_000  # of a model
_MAX_BESIDE_MODEL = 16_000_000  # thousands of added tokens take 2 MB, a table of replacements 0.5

# Some of what lies between brackets, with short lists of texts, which are most of a file: pairs of merges. At every
# byte there is one way on, and repetitions are bounded: what may be taken back costs memory. (Possessive repetitions,
# which take nothing back, are wrong before Python 3.11.5.)
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*){0,4096}"'
_BETWEEN = rb'[^"\[\]{}]*'
_SHORT_LIST = rb"\[%b(?:%b%b){0,8}\]" % (_BETWEEN, _STRING, _BETWEEN)
_FLAT = re.compile(rb"%b(?:(?:%b|%b)%b){0,1000}" % (_BETWEEN, _STRING, _SHORT_LIST, _BETWEEN), re.DOTALL)
_BLANK = re.compile(rb"[ \t\r\n]*")
_SCALAR = re.compile(rb"%b|[-+.\w]+" % _STRING, re.DOTALL)


def sections(data: bytes) -> dict[str, object]:
    """The members of the object in `data`. Of its "model", the texts and numbers: lists and objects are None there.

    Raises ValueError or RecursionError.
    """
    found: dict[str, object] = {}
    beside = 0
    for key, start, end in _members(data, 0):
        if key == "model":
            found[key] = _scalars(data, start)
            continue
        beside += end - start
        if beside > _MAX_BESIDE_MODEL:
            raise ValueError("more than a vocabulary")
        found[key] = json.loads(data[start:end])
    return found


def _scalars(data: bytes, at: int) -> dict[str, object] | None:
    """Of the object at `at`; None for anything else, which is no model."""
    if not data.startswith(b"{", at):
        return None
    found: dict[str, object] = {}
    for key, start, end in _members(data, at):
        found[key] = None
        if not data.startswith((b"{", b"["), start):
            if end - start > _MAX_FIELD:
                raise ValueError(f"{quote(key)} of its model has {end - start} bytes")
            found[key] = json.loads(data[start:end])
    return found


def _members(data: bytes, at: int) -> Iterator[tuple[str, int, int]]:
    """(key, where its value begins, and ends) of the object at `at`.

    A key that occurs twice is an error: some parsers take its first value, some its last.
    """
    seen: set[str] = set()
    at = _expect(data, at, b"{")
    while not data.startswith(b"}", at):
        start, end = at, _value_end(data, at)
        key = json.loads(data[start:end]) if end - start <= _MAX_FIELD else None
        if not isinstance(key, str) or key in seen or len(seen) >= _MAX_MEMBERS:
            raise ValueError(f"{quote(key)} is no key, occurs twice or is one of too many")
        seen.add(key)
        start = _expect(data, _skip_blanks(data, end), b":")
        end = _value_end(data, start)
        yield key, start, end
        at = _skip_blanks(data, end)
        if not data.startswith(b"}", at):
            at = _expect(data, at, b",")


def _expect(data: bytes, at: int, mark: bytes) -> int:
    """Where the next value begins, after `mark`."""
    at = _skip_blanks(data, at)
    if not data.startswith(mark, at):
        raise ValueError(f"no {mark.decode()} at byte {at}")
    return _skip_blanks(data, at + 1)


def _skip_blanks(data: bytes, at: int) -> int:
    found = _BLANK.match(data, at)
    return found.end() if found else at


def _value_end(data: bytes, at: int) -> int:
    if data[at : at + 1] not in (b"{", b"["):
        scalar = _SCALAR.match(data, at)
        if scalar is None:
            raise ValueError(f"no value at byte {at}")
        return scalar.end()
    depth, at = 1, at + 1
    while depth:
        while (flat := _FLAT.match(data, at)) and flat.end() > at:
            at = flat.end()
        mark = data[at : at + 1]
        if mark not in (b"{", b"[", b"}", b"]") or not mark:
            raise ValueError(f"an unfinished value at byte {at}")
        depth += 1 if mark in (b"{", b"[") else -1
        at += 1
    return at
