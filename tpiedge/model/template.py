"""Chat templates: from messages to the prompt the model was trained on.

A template is a program by the model's author. It runs in a child process (`text_child.py`) in Jinja's sandbox, with
limits on CPU, memory, output and time, whichever model it comes from.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpiedge.errors import UserError
from tpiedge.model.folder import has_file, list_files, read_json, read_text
from tpiedge.model.template_habits import TemplateHabits, TemplateRefusal, habits_of
from tpiedge.model.text_process import TextJob, TextProcess
from tpiedge.sanitise import quote, sanitised_line
from tpiedge.units import MIB

ADDITIONAL_TEMPLATES = "additional_chat_templates"
"""The folder beside `chat_template.jinja` that has the other templates of a model, each in NAME.jinja."""

_MAX_TEMPLATE_BYTES = 1_000_000
_MAX_CONFIG_BYTES = 10_000_000
_MAX_TEMPLATES = 64
_SUFFIX = ".jinja"
_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


@dataclass(frozen=True)
class RenderLimits:
    """What one rendering may take. The interpreter and Jinja themselves need 40 MiB. A template cannot wait for
    anything: what takes longer than its processor time waits for a processor."""

    cpu_s: int = 2
    wall_s: float = 30.0
    memory: int = 256 * MIB
    characters: int = 8_000_000


class ChatTemplate:
    """The templates of one model by name ("default", "tool_use"), with its special tokens as variables."""

    def __init__(
        self,
        templates: Mapping[str, str],
        special_tokens: Mapping[str, str],
        limits: RenderLimits | None = None,
    ) -> None:
        self._templates = dict(templates)
        self._special_tokens = dict(special_tokens)
        self._limits = limits or RenderLimits()
        packages = ("jinja2", "markupsafe")
        self._process = TextProcess(
            "the model's chat template", packages, self._limits.memory, self._limits.wall_s
        )
        self._habits: dict[str, TemplateHabits] = {}

    @staticmethod
    def open(folder: Path, special_tokens: Mapping[str, str]) -> "ChatTemplate":
        """Reads the templates wherever a model's files keep them: `chat_template.jinja` with the folder
        `additional_chat_templates`, `chat_template` in `tokenizer_config.json`, `chat_template.json`. Raises
        UserError."""
        templates = _templates_of(folder)
        if not templates:
            raise UserError(
                f"{folder} has no chat template: use text completion, or an instruction-tuned model "
                "(with chat_template.jinja)"
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
        """The prompt for `messages` (JSON values); `variables` are the model's switches ("enable_thinking").

        Raises UserError, in one line, if the template refuses the messages, is broken or exceeds its limits:
        TemplateRefusal where other messages may do. Raises ChildLost if its process was killed from outside twice,
        or got no processor.
        """
        extra = dict(variables or {})
        if taken := sorted(_RESERVED & set(extra)):
            raise UserError(f"a template variable cannot be called {taken[0]}; choose another name")
        job = {
            "template": self._choose(tools),
            "characters": self._limits.characters,
            "variables": {
                **self._special_tokens,
                **extra,
                "messages": list(messages),
                "tools": None if tools is None else list(tools),
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
            },
        }
        letter, answer = self._process.do(TextJob(b"R", _encode(job), self._limits.cpu_s))
        text = answer.decode("utf-8", "surrogatepass")
        if letter == b"t":
            return text
        why = f"the model's chat template failed: {sanitised_line(text, 320)}"
        # What met a limit would meet it with the same messages in another form, too.
        raise TemplateRefusal(why) if letter == b"e" else UserError(why)

    def habits(self, tools: Sequence[Mapping[str, Any]] | None) -> TemplateHabits:
        """Finds out once how the template for chats with or without tools takes calls."""
        source = self.source(tools=tools is not None)
        if source not in self._habits:
            self._habits[source] = habits_of(self.render, tools=tools is not None)
        return self._habits[source]

    def source(self, *, tools: bool) -> str:
        """The text of the template for chats with or without tools; "" where there is none."""
        usual = self._templates.get("default", "")
        return self._templates.get("tool_use", usual) if tools else usual

    def _choose(self, tools: object) -> str:
        if tools is not None and "tool_use" in self._templates:
            return self._templates["tool_use"]
        if "default" not in self._templates:
            names = ", ".join(sorted(self._templates))
            raise UserError(
                f"the model has no default chat template, only {quote(names)}; use text completion"
            )
        return self._templates["default"]


def has_template(folder: Path) -> bool:
    """Whether `ChatTemplate.open` finds one. Raises UserError for files that it cannot read."""
    return bool(_templates_of(folder))


def _templates_of(folder: Path) -> Mapping[str, str]:
    """The templates by name. Files of their own win over `tokenizer_config.json`, and that over an old processor's
    file."""
    templates = _templates_of_json(folder, "tokenizer_config.json") or _templates_of_json(
        folder, "chat_template.json"
    )
    names = list_files(folder, ADDITIONAL_TEMPLATES, _SUFFIX)
    if len(names) > _MAX_TEMPLATES:
        raise UserError(f"{folder / ADDITIONAL_TEMPLATES} has more than {_MAX_TEMPLATES} templates")
    for name in names:
        text = read_text(folder, name, _MAX_TEMPLATE_BYTES, ADDITIONAL_TEMPLATES)
        templates[name.removesuffix(_SUFFIX)] = text
    if has_file(folder, "chat_template.jinja"):
        templates["default"] = read_text(folder, "chat_template.jinja", _MAX_TEMPLATE_BYTES)
    return templates


def _templates_of_json(folder: Path, file: str) -> dict[str, str]:
    if not has_file(folder, file):
        return {}
    where = folder / file
    value = read_json(folder, file, _MAX_CONFIG_BYTES).get("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        value = {"default": value}
    if isinstance(value, dict):
        value = [{"name": key, "template": text} for key, text in value.items()]
    if not isinstance(value, list) or len(value) > _MAX_TEMPLATES:
        raise UserError(f"{where}: chat_template is neither a text nor a list of named texts")
    templates: dict[str, str] = {}
    for entry in value:
        name, text = (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(text, str):
            raise UserError(f"{where}: chat_template holds {quote(entry)}, not a name and a template")
        if len(text) > _MAX_TEMPLATE_BYTES:
            raise UserError(f"{where}: chat_template {quote(name)} has over {_MAX_TEMPLATE_BYTES} characters")
        templates[name] = text
    return templates


def _encode(job: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(job, allow_nan=False).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"the messages are not plain JSON: {sanitised_line(error, 120)}") from None
