"""Finds out how a chat template takes calls of tools, by a call that it renders in every form. Pure.

Templates of one family write a call's arguments with `tojson` and want an object; those of another join them to other
texts and want the text of an API. In some a message beside calls must have no content, in others an empty one.
transformers hands over what it is given, so which one is right follows from the template alone.

Laws:
1. Arguments are an object, unless a text shows them better: they are there, as JSON and not as Python writes them.
2. A form of empty content is taken if the template renders it, shows the call, and prints no "None".
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tpiedge.errors import UserError

_NEEDLE: Final = "needle"
_ARGUMENTS: Final = {"hay": _NEEDLE}
_TEXT: Final = json.dumps(_ARGUMENTS)
_PYTHON: Final = str(_ARGUMENTS)
#: Whoever prints the whole call as Python does has it so from transformers, too.
_WHOLE: Final = f"'arguments': {_PYTHON}"
#: Mistral's templates want nine letters and digits.
_ID: Final = "abcdefgh1"
_TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "looks",
            "parameters": {
                "type": "object",
                "properties": {"hay": {"type": "string", "description": "where"}},
            },
        },
    }
]


class TemplateRefusal(UserError):
    """A template that failed with the messages it got; others may do."""


@dataclass(frozen=True, slots=True)
class TemplateHabits:
    """The forms that a template takes. `text_arguments`: arguments as the text of JSON, not as an object;
    `null_content` and `empty_content`: None and "" as the content of a message that has calls alone."""

    text_arguments: bool = False
    null_content: bool = False
    empty_content: bool = True


CALLS_AS_OBJECTS: Final = TemplateHabits()
"""The habits of most templates, and of those of which nothing can be found out."""


def habits_of(render: Callable[..., str], *, tools: bool) -> TemplateHabits:
    """`render` is that of a ChatTemplate. Raises UserError where it fails for want of time or memory."""
    given = _TOOLS if tools else None

    def tried(content: str | None, arguments: object) -> str | None:
        try:
            return render(_conversation(content, arguments), tools=given)
        except TemplateRefusal:
            return None

    best, habits = 0, CALLS_AS_OBJECTS
    for arguments in (_ARGUMENTS, _TEXT):
        null, empty = tried(None, arguments), tried("", arguments)
        quality = max(_quality(null), _quality(empty))
        if quality > best:
            best, habits = quality, _with_contents(arguments is _TEXT, null, empty)
        if quality == _BEST:
            break
    return habits


_BEST: Final = 3


def _quality(text: str | None) -> int:
    """Rates how the text of a template shows the arguments: 0 where it failed, 1 where they are not there, 2 where they
    are as Python writes them, or escaped."""
    if text is None:
        return 0
    if _NEEDLE not in text:
        return 1
    shown = text.replace(_WHOLE, "")
    return 2 if _PYTHON in shown or json.dumps(_TEXT)[1:-1] in text else _BEST


def _with_contents(text_arguments: bool, null: str | None, empty: str | None) -> TemplateHabits:
    quality = max(_quality(null), _quality(empty))
    takes_empty = _quality(empty) == quality
    nones = (empty or "").count("None") if takes_empty else 0
    takes_null = null is not None and _quality(null) == quality and null.count("None") <= nones
    return TemplateHabits(text_arguments, takes_null or not takes_empty, takes_empty)


def _conversation(content: str | None, arguments: object) -> Sequence[dict[str, Any]]:
    function = {"name": "look", "arguments": arguments}
    call = {"id": _ID, "type": "function", "function": function}
    return (
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": _ID, "name": "look", "content": "seen"},
    )
