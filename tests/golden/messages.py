"""The table says of every field of every message which values the wire takes, which it refuses, and a digest of the
bytes and words of all of them. The messages are those of tests/unit/wire/golden.py."""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator
from typing import Any, Final
from unittest.mock import patch

import msgspec
from msgspec import structs

from tests.unit.wire.golden import MESSAGES
from tpiedge.errors import ProtocolError
from tpiedge.wire.codec import decode, encode

VALUES: Final = (
    None, True, 0, 1, -1, 2, 5, 127, 128, 255, 256, 2**16, 2**32 - 1, 2**32, 2**64 - 1, 2**64, 0.5, 1.5, -0.5, 1e19,
    1e-300, math.nan, "", "x", "x" * 256, "x" * 257, b"", b"x", (), (1,), (1, 2), ("x",), ((1, 0.5),), (None,) * 129,
)  # fmt: skip


def field_lines() -> Iterator[dict[str, Any]]:
    """The number of the protocol is left out: a change of one message changes no line of the others."""
    seen = set[str]()
    with patch("tpiedge.wire.codec.PROTOCOL", 1):
        for message in MESSAGES:
            for name, put in _places(message, type(message).__name__):
                if name not in seen:
                    seen.add(name)
                    yield {"field": name, **_tried(put)}


def _places(message: Any, name: str) -> Iterator[tuple[str, Callable[[object], Any]]]:
    """Each field with what makes the whole with another value there; the first of several stands for all."""
    names = [field.name for field in (structs if _is_struct(message) else dataclasses).fields(message)]
    for field in names:
        value, where = getattr(message, field), f"{name}.{field}"

        def put(new: object, own: str = field) -> Any:
            return type(message)(**{one: getattr(message, one) for one in names} | {own: new})

        yield where, put
        several = isinstance(value, tuple) and value and _is_part(value[0])
        if several or _is_part(value):
            for inner, set_inner in _places(value[0] if several else value, where):

                def put_inner(
                    new: object, put=put, inner=set_inner, rest=value[1:] if several else None
                ) -> Any:
                    return put(inner(new) if rest is None else (inner(new), *rest))

                yield inner, put_inner


def _is_struct(value: object) -> bool:
    return isinstance(value, msgspec.Struct)


def _is_part(value: object) -> bool:
    return _is_struct(value) or dataclasses.is_dataclass(value)


def _tried(put: Callable[[object], Any]) -> dict[str, Any]:
    """`takes`: a mark for each of VALUES; `refusal`: the first one of a number, else the first."""
    marks, refusals, digest = "", dict[object, str](), hashlib.sha256()
    for value in VALUES:
        try:
            data = encode(put(value))
            decode(data)
        except ProtocolError as error:
            refusals[repr(value)] = str(error)
            data = str(error).encode()
            marks += "-"
        except Exception as error:
            data = type(error).__name__.encode()
            marks += "!"
        else:
            marks += "+"
        digest.update(data)
    found = refusals.get("-1", next(iter(refusals.values()), ""))
    return {"takes": marks, "refusal": found[:160], "digest": digest.hexdigest()[:12]}
