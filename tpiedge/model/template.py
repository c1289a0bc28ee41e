"""Chat templates: from messages to the prompt the model was trained on.

A template is a program by the model's author. It runs in a child process (`template_child.py`) in Jinja's
sandbox, with limits on CPU, memory, output and time, whichever model it comes from.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tpiedge.errors import ChildLost, UserError
from tpiedge.lifeline import killed_from_outside
from tpiedge.model.folder import has_file, list_files, read_json, read_text
from tpiedge.model.template_habits import TemplateHabits, TemplateRefusal, habits_of
from tpiedge.sanitise import quote, sanitised_line
from tpiedge.units import MIB

__all__ = ["ADDITIONAL_TEMPLATES", "ChatTemplate", "RenderLimits", "TemplateRefusal", "has_template"]

ADDITIONAL_TEMPLATES = "additional_chat_templates"
"""The folder beside `chat_template.jinja` that has the other templates of a model, each in NAME.jinja."""

_CHILD = Path(__file__).parent / "template_child.py"
_MAX_TEMPLATE_BYTES = 1_000_000
_MAX_CONFIG_BYTES = 10_000_000
_MAX_TEMPLATES = 64
_SUFFIX = ".jinja"
_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_KEPT_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TZ")


@dataclass(frozen=True)
class RenderLimits:
    """What one rendering may take. The interpreter and Jinja themselves need about 0.1 s and 40 MiB. A template cannot
    wait for anything: what takes longer than its processor time waits for a processor."""

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
            "limits": {
                "cpu_s": self._limits.cpu_s,
                "memory": self._limits.memory,
                "characters": self._limits.characters,
            },
            "variables": {
                **self._special_tokens,
                **extra,
                "messages": list(messages),
                "tools": None if tools is None else list(tools),
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
            },
        }
        return _run(_encode(job), self._limits.wall_s)

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


def _run(job: bytes, wall_s: float) -> str:
    """Have a child process render `job`."""
    child = _rendered(job, wall_s)
    if killed_from_outside(child.returncode):
        child = _rendered(job, wall_s)
    if killed_from_outside(child.returncode):
        raise ChildLost(
            f"the process that renders the chat template was killed twice (signal {-child.returncode}), perhaps "
            "because this machine is short of memory: try again later"
        )
    return _answer(child.stdout, child.returncode)


def _rendered(job: bytes, wall_s: float) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-I", "-S", str(_CHILD), *_jinja_folders()]
    environment = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    try:
        return subprocess.run(
            command,
            input=job,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=wall_s,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ChildLost(
            f"the model's chat template took more than {wall_s:g} s: this machine is too busy for it; try again later"
        ) from None


def _answer(output: bytes, status: int) -> str:
    try:
        answer = json.loads(output)
    except (ValueError, RecursionError):
        answer = None
    known = (
        [answer[key] for key in ("text", "error", "limit") if key in answer]
        if isinstance(answer, dict)
        else []
    )
    if len(known) != 1 or not isinstance(known[0], str):
        # Killed by a limit (a negative status), or out of memory before it could say so.
        reason = f"signal {-status}" if status < 0 else f"exit status {status}"
        raise UserError(
            f"the model's chat template took too much time or memory ({reason}); use another template"
        )
    if "text" in answer:
        return str(known[0])
    why = f"the model's chat template failed: {sanitised_line(known[0], 320)}"
    # What met a limit would meet it with the same messages in another form, too.
    raise TemplateRefusal(why) if "error" in answer else UserError(why)


def _jinja_folders() -> list[str]:
    """Where jinja2 and markupsafe lie: the child starts without site-packages, which halves its start-up."""
    folders = []
    for name in ("jinja2", "markupsafe"):
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise UserError(f"the Python package {name} is missing; install tpiedge again")
        folders.append(str(Path(spec.origin).parent.parent))
    return list(dict.fromkeys(folders))
