"""Inputs that are nearly in order: copies of good ones, changed as bytes and as the structure that they hold."""

import random
import struct
from collections.abc import Sequence
from typing import Any

from tests.fuzz.forms import Form

MAX_BYTES = 1 << 17
_MOST_KEPT = 400
_NUMBERS = (
    0, 1, 2, 3, 7, 8, 16, 31, 32, 64, 127, 128, 255, 256, 1000, 4096, 65535, 65536, 1 << 20, (1 << 31) - 1, 1 << 31,
    (1 << 32) - 1, 1 << 32, 1 << 40, 1 << 53, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 10**400,
)  # fmt: skip
_SCALARS: tuple[Any, ...] = (
    None, True, False, *_NUMBERS, *(-number for number in _NUMBERS[1:-2]), 0.5, -0.0, 1e-320, 1e-6, 1e308, 1e16,
    float("inf"), float("-inf"), float("nan"), "", " ", "a", "0", "-1", "1e9", "true", "null", "x" * 300, "\0",
    "\n", "\x1b[2J\x07", "a\r\nb", "\ud800", "\u202e", "\u2581", "\ufdfa", "\U0001f642", "../../x", "/dev/zero", "{}",
    "%s%n", "a\u0300" * 40,
)  # fmt: skip


class Mutator:
    """Makes inputs for one parser out of `seeds`, by numbers that follow from `seed`."""

    def __init__(
        self, seeds: Sequence[bytes], words: Sequence[bytes], form: Form | None, seed: object
    ) -> None:
        self._random = random.Random(repr(seed))
        self._first = len(seeds)
        self._seeds = list(seeds)
        self._words = words
        self._form = form

    def keep(self, data: bytes) -> None:
        """`data` led somewhere new: it is a seed from now on."""
        if len(self._seeds) - self._first >= _MOST_KEPT:
            del self._seeds[self._random.randrange(self._first, len(self._seeds))]
        self._seeds.append(data)

    def make(self) -> bytes:
        chance = self._random
        # What was kept was mostly refused: the way is further from what is in order.
        kept = len(self._seeds) > self._first and chance.random() < 0.4
        data = self._seeds[
            chance.randrange(self._first, len(self._seeds)) if kept else chance.randrange(self._first)
        ]
        if self._form is not None and chance.random() < 0.7:
            data = self._restructured(data, self._form)
            if chance.random() < 0.85:
                return data[:MAX_BYTES]
        for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
            data = self._damaged(data)
        return data[:MAX_BYTES]

    def _restructured(self, data: bytes, form: Form) -> bytes:
        try:
            tree = form.parse(data)
            for _ in range(self._random.choice((1, 1, 1, 2, 2, 3, 5))):
                tree = self._changed(tree, tree)
            return form.write(tree)
        except (
            struct.error,
            ValueError,
            TypeError,
            LookupError,
            ArithmeticError,
            AttributeError,
            RecursionError,
            MemoryError,
        ):
            return self._damaged(data)  # no such structure, or one that cannot be written

    def _changed(self, node: Any, root: Any) -> Any:
        """A copy of `node` with one change somewhere below; what is not changed is shared."""
        chance = self._random
        if isinstance(node, dict) and node and chance.random() < 0.9:
            return self._changed_dict(node, root)
        if isinstance(node, list | tuple) and node and chance.random() < 0.9:
            return self._changed_list(list(node), root)
        return self._value(node, root)

    def _changed_dict(self, node: dict[Any, Any], root: Any) -> dict[Any, Any]:
        chance = self._random
        key = chance.choice(list(node))
        what = chance.random()
        if what < 0.75:
            return node | {key: self._changed(node[key], root)}
        if what < 0.85:
            return {name: value for name, value in node.items() if name != key}
        name = (
            self._text(key)
            if chance.random() < 0.5
            else chance.choice(self._words or (b"x",)).decode("latin-1")
        )
        if what < 0.93:
            return node | {name: node[key]}
        return node | {name: self._value(node[key], root)}

    def _changed_list(self, node: list[Any], root: Any) -> list[Any]:
        chance = self._random
        at = chance.randrange(len(node))
        what = chance.random()
        if what < 0.7:
            node[at] = self._changed(node[at], root)
        elif what < 0.78:
            del node[at]
        elif what < 0.88:
            node.insert(chance.randrange(len(node) + 1), node[at])
        elif what < 0.92:
            other = chance.randrange(len(node))
            node[at], node[other] = node[other], node[at]
        elif what < 0.96:
            node.insert(at, self._value(node[at], root))
        else:
            node = (node * chance.choice((2, 10, 200)))[:300]
        return node

    def _value(self, node: Any, root: Any) -> Any:
        chance = self._random
        what = chance.random()
        if isinstance(node, bool) and what < 0.5:
            return not node
        if type(node) is int and what < 0.6:
            return chance.choice((node - 1, node + 1, 0, -node, 2 * node, chance.choice(_NUMBERS)))
        if isinstance(node, str) and what < 0.6:
            return self._text(node)
        if isinstance(node, bytes) and what < 0.6:
            return self._damaged(node)
        if what < 0.7:
            return chance.choice(_SCALARS)
        if what < 0.8:
            return self._anywhere(root)
        if what < 0.88:
            return chance.choice(([], {}, [node], {"a": node}, [node] * 3, [[[[node]]]]))
        if what < 0.98 or not self._words:
            return chance.choice(self._words or (b"",)).decode("latin-1")
        deep: Any = node
        for _ in range(chance.choice((10, 40, 200))):
            deep = [deep]
        return deep

    def _text(self, text: object) -> str:
        chance = self._random
        text = str(text)
        at = chance.randrange(len(text) + 1)
        piece = chance.choice(
            (chr(chance.randrange(0x20, 0x7F)), "", text[:8], str(chance.choice(_NUMBERS)),
             chance.choice(self._words or (b" ",)).decode("latin-1"), str(chance.choice(_SCALARS)))
        )  # fmt: skip
        return text[:at] + piece + text[at + chance.choice((0, 0, 1, 4)) :]

    def _anywhere(self, root: Any) -> Any:
        node = root
        while isinstance(node, dict | list) and node and self._random.random() < 0.8:
            node = self._random.choice(list(node.values()) if isinstance(node, dict) else node)
        return node

    def _damaged(self, data: bytes) -> bytes:
        chance = self._random
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + chance.choice((1, 1, 2, 4, 8, 32, 256)))
        what = chance.randrange(12)
        if what == 0 and data:
            at = min(at, len(data) - 1)
            return data[:at] + bytes((data[at] ^ 1 << chance.randrange(8),)) + data[at + 1 :]
        if what == 1:
            return data[:at] + bytes((chance.randrange(256),)) + data[at + 1 :]
        if what == 2:
            width = chance.choice((1, 2, 4, 8))
            number = chance.choice(_NUMBERS) & (1 << 8 * width) - 1
            return data[:at] + number.to_bytes(width, chance.choice(("little", "big"))) + data[at + width :]
        if what == 3:
            return data[:at] + data[end:]
        if what == 4:
            return data[:end] + data[at:]
        if what == 5:
            return data[:at] + chance.randbytes(end - at or 3) + data[at:]
        if what == 6:
            return data[:at]
        if what == 7 and chance.random() < 0.1:  # large inputs are slow ones
            return data[:at] + (data[at:end] or b"[") * chance.choice((50, 1000, 20_000)) + data[end:]
        if what == 8:
            other = chance.choice(self._seeds)
            return data[:at] + other[chance.randrange(len(other) + 1) :]
        if what == 9:
            other = chance.choice(self._seeds)
            from_ = chance.randrange(len(other) + 1)
            return data[:at] + other[from_ : from_ + chance.choice((2, 8, 64))] + data[end:]
        if what == 10:
            number = str(chance.choice(_NUMBERS)).encode() if chance.random() < 0.9 else b"9" * 5000
            return data[:at] + number + data[end:]
        return data[:at] + chance.choice(self._words or (b"\xff",)) + data[chance.choice((at, end)) :]
