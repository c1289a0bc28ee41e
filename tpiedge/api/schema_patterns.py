"""Which regular expressions of JSON schemas a grammar can hold. Pure.

Patterns are written for JavaScript or Python; the library of grammars reads Rust's syntax, without what looks around.
"""

import re
from typing import Final

#: One element of a pattern: an escape, what opens a group, a quantifier, or any other character.
_ELEMENT: Final = re.compile(
    r"\\[pPux]\{[^}]{0,64}\}|\\.|\(\?(?:P?<[A-Za-z_]|[imsUuxR-]*[:)]|.?)|\{[0-9]+(?:,[0-9]*)?\}|.", re.DOTALL
)
_GROUP: Final = re.compile(r"\(\?(?:P?<[A-Za-z_]|[isUuxR-]*[:)])")
_ESCAPED_LETTERS: Final = "aftnrvxuUdDsSwWAzpP"
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_BEFORE_START: Final = ("", "(", "|", "^")
_AFTER_END: Final = ("", ")", "|", "$")


def is_held(pattern: str) -> bool:
    """Whether the pattern has nothing that no grammar can hold: lookaround, a reference to a group, the border of a
    word, an anchor in the middle, or an escape, group or class of another syntax."""
    elements = _ELEMENT.findall(pattern)
    in_class = False
    for at, element in enumerate(elements):
        before = elements[at - 1] if at else ""
        after = elements[at + 1] if at + 1 < len(elements) else ""
        if element.startswith("\\"):
            held = _escape_held(element[1])
        elif in_class:
            held = element != "[" or after == ":"
            in_class = element != "]" or before == "[" or elements[at - 2 : at] == ["[", "^"]
        elif element == "[":
            held = in_class = True
        else:
            held = _mark_held(element, before, after)
        if not held:
            return False
    return not in_class and not _SURROGATE.search(pattern)


def _escape_held(character: str) -> bool:
    if character.isalnum():
        return character in _ESCAPED_LETTERS
    return character.isascii() and character not in "<>"


def _mark_held(element: str, before: str, after: str) -> bool:
    if element == "^":
        return before in _BEFORE_START or before.startswith("(?")
    if element == "$":
        return after in _AFTER_END
    if element == "{":  # no quantifier, though one for others
        return False
    return not element.startswith("(?") or _GROUP.fullmatch(element) is not None
