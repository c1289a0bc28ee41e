"""Renders messages as a prompt with a chat template. A template is an untrusted program. It runs in a child process
(`text_child.py`), in Jinja's sandbox, with limits on CPU, memory, output and time."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tpiedge.errors import UserError
from tpiedge.model.folder import has_file, list_files, read_json, read_text
from tpiedge.model.text_process import JobFailed, TextProcess
from tpiedge.sanitise import quote, sanitised_line
from tpiedge.units import MIB

_NEEDLE: Final = "needle"
_ARGUMENTS: Final = {"hay": _NEEDLE}
_TEXT: Final = json.dumps(_ARGUMENTS)
_PYTHON: Final = str(_ARGUMENTS)
_WHOLE: Final = f"'arguments': {_PYTHON}"  # transformers, too, prints a whole call as Python does
_ID: Final = "abcdefgh1"  # Mistral's templates want nine letters and digits
_PARAMETERS: Final = {"type": "object", "properties": {"hay": {"type": "string", "description": "where"}}}
_LOOK: Final = {"name": "look", "description": "looks", "parameters": _PARAMETERS}
_TOOLS: Final = [{"type": "function", "function": _LOOK}]


class TemplateRefusal(UserError):
    """A template failed on the messages of a chat; other messages may work."""


@dataclass(frozen=True, slots=True)
class TemplateHabits:
    """The forms of calls that a template takes. If `text_arguments` is true, arguments are JSON text, else objects.
    `contents` has the forms of empty content beside calls ("" or None), the best first. If `single_calls` is true, the
    template leaves out all calls of a message but the first."""

    text_arguments: bool = False
    contents: tuple[str | None, ...] = ("",)
    single_calls: bool = False


CALLS_AS_OBJECTS: Final = TemplateHabits()  # the habits of most templates, and the default
_BEST: Final = 3


def _habits_of(render: Callable[..., str], *, tools: bool) -> TemplateHabits:
    """Finds a template's habits by rendering a call in every form."""

    def tried(content: str | None, arguments: object, calls: int = 1) -> str | None:
        call = {"id": _ID, "type": "function", "function": {"name": "look", "arguments": arguments}}
        messages = (
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": content, "tool_calls": [call] * calls},
            {"role": "tool", "tool_call_id": _ID, "name": "look", "content": "seen"},
        )
        try:
            return render(messages, tools=_TOOLS if tools else None)
        except TemplateRefusal:
            return None

    best, habits, shown = 0, CALLS_AS_OBJECTS, 0
    # Arguments are an object, unless the template shows a text better.
    for arguments in (_ARGUMENTS, _TEXT):
        texts = {content: tried(content, arguments) for content in ("", None)}
        quality = max(map(_quality, texts.values()))
        if quality > best:
            fitting = {content: str(text) for content, text in texts.items() if _quality(text) == quality}
            # Another content must not show "None" more often than the first one.
            nones = next(iter(fitting.values())).count("None")
            contents = (content for content, text in fitting.items() if text.count("None") <= nones)
            best, habits = quality, TemplateHabits(arguments is _TEXT, tuple(contents))
            shown = next(iter(fitting.values())).count(_NEEDLE)
        if quality == _BEST:
            break
    if best > 1:
        twice = tried(habits.contents[0], _TEXT if habits.text_arguments else _ARGUMENTS, calls=2)
        return replace(habits, single_calls=twice is not None and twice.count(_NEEDLE) == shown)
    return habits


def _quality(text: str | None) -> int:
    """Rates how arguments look. 0: no text; 1: absent; 2: Python or escaped; 3: JSON."""
    if text is None:
        return 0
    if _NEEDLE not in text:
        return 1
    shown = text.replace(_WHOLE, "")
    return 2 if _PYTHON in shown or json.dumps(_TEXT)[1:-1] in text else _BEST


ADDITIONAL_TEMPLATES = "additional_chat_templates"
"""The folder with further templates, NAME.jinja, beside `chat_template.jinja`."""

MAX_TEMPLATE_BYTES = 1_000_000
_MAX_TEMPLATES = 64
_SUFFIX = ".jinja"


class ChatTemplate:
    """One model's chat templates by name ("default", "tool_use"), with its special tokens."""

    def __init__(
        self, templates: Mapping[str, str], special_tokens: Mapping[str, str], *, wall_s: float = 30.0
    ) -> None:
        self._templates = dict(templates)
        self._special_tokens = dict(special_tokens)
        self._process = TextProcess("the model's chat template", 256 * MIB, wall_s)
        self._habits: dict[str, TemplateHabits] = {}

    @staticmethod
    def open(folder: Path, special_tokens: Mapping[str, str]) -> "ChatTemplate":
        """Reads template files or the tokenizer's config. Raises UserError."""
        templates = templates_of(folder)
        if not templates:
            raise UserError(
                f"{folder} has no chat template: use text completion, an instruction-tuned model, or a template of "
                "your own (tpiedge import-gguf --chat-template)"
            )
        return ChatTemplate(templates, special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Renders `messages`. `variables` has values for the template's own variables. Blocks. Raises TemplateRefusal,
        UserError, ChildLost."""
        template = self.source(tools=tools is not None)
        if not template:
            names = quote(", ".join(sorted(self._templates)))
            raise UserError(f"the model has no default chat template, only {names}; use text completion")
        own = {
            "messages": list(messages),
            "tools": None if tools is None else list(tools),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        given = {**self._special_tokens, **(variables or {}), **own}
        job = {"template": template, "characters": 8_000_000, "variables": given}
        try:
            body = json.dumps(job, allow_nan=False).encode("ascii")
        except (TypeError, ValueError, RecursionError) as error:
            raise UserError(f"the messages are not plain JSON: {sanitised_line(error, 120)}") from None
        try:
            return str(self._process.do(b"R", body))
        except JobFailed as error:
            # Another form of the same messages would meet the same limit.
            kind = UserError if error.limited else TemplateRefusal
            raise kind(f"the model's chat template failed: {sanitised_line(error, 320)}") from None

    def habits(self, tools: Sequence[Mapping[str, Any]] | None) -> TemplateHabits:
        source = self.source(tools=tools is not None)
        if source not in self._habits:
            self._habits[source] = _habits_of(self.render, tools=tools is not None)
        return self._habits[source]

    def source(self, *, tools: bool) -> str:
        """Returns the template for chats with or without tools, or "" if it is missing."""
        usual = self._templates.get("default", "")
        return self._templates.get("tool_use", usual) if tools else usual


def templates_of(folder: Path) -> Mapping[str, str]:
    """Returns name -> template. A template file overrides a template in JSON. Raises UserError."""
    templates = _templates_of_json(folder, "tokenizer_config.json")
    templates = templates or _templates_of_json(folder, "chat_template.json")
    names = list_files(folder, ADDITIONAL_TEMPLATES, _SUFFIX)
    for name in names[:_MAX_TEMPLATES]:
        text = read_text(folder, name, MAX_TEMPLATE_BYTES, ADDITIONAL_TEMPLATES)
        templates[name.removesuffix(_SUFFIX)] = text
    if has_file(folder, "chat_template.jinja"):
        templates["default"] = read_text(folder, "chat_template.jinja", MAX_TEMPLATE_BYTES)
    return templates


def _templates_of_json(folder: Path, file: str) -> dict[str, str]:
    if not has_file(folder, file):
        return {}
    value = read_json(folder, file, 10_000_000).get("chat_template")
    if value is None or isinstance(value, str):
        return {} if value is None else {"default": value}
    if isinstance(value, list) and all(isinstance(one, dict) for one in value):
        named = [(one.get("name"), one.get("template")) for one in value]
    else:
        named = list(value.items()) if isinstance(value, dict) else [(None, None)]
    if not all(isinstance(one, str) for both in named for one in both):
        raise UserError(f"{folder / file}: chat_template is neither a text nor a list of named texts")
    return dict(named)
