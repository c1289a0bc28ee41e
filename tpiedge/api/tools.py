"""Reads the fields of a request about tools that the model may call."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tpiedge.api import fields as t
from tpiedge.api.answer_grammar import check_schema, schema_of_grammar
from tpiedge.api.errors import refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.grammar_schema import GrammarSchema
from tpiedge.api.parsed import MAX_TOOL_NAME, MAX_TOOLS
from tpiedge.local.served_models import ServedModel
from tpiedge.model.call_reader import CallForm, ReadTool, call_form

_Names = Sequence[str]
_NAME: Final = re.compile(rf"[A-Za-z0-9_.:-]{{1,{MAX_TOOL_NAME}}}")
FUNCTION: Final[dict[str, t.JsonSchema]] = {
    "name": {**t.TEXT, "pattern": f"^{_NAME.pattern}$"},
    "description": t.text(),
    "parameters": t.OBJECT,
    "strict": t.flag("Where a call is required it is always so."),
}
_FUNCTION: Final = t.body("name", **FUNCTION)
_TOOL: Final = t.body("type", "function", type={"const": "function"}, function=_FUNCTION)
_CALLED: Final = t.body(name=t.TEXT)
_NAMED: Final = t.tagged("type", function=t.body("function", function=_CALLED, custom=t.unsupported()))
_ALLOWED: Final = t.body(
    "mode",
    "tools",
    mode={"enum": ["auto", "required"]},
    tools=t.array(t.any_of(*_NAMED.values()), most=MAX_TOOLS),
)
_CHOICES: Final = _NAMED | t.tagged("type", allowed_tools=t.body("allowed_tools", allowed_tools=_ALLOWED))
TOOLS: Final[dict[str, t.JsonSchema]] = {
    "tools": t.array(_TOOL, most=MAX_TOOLS),
    "tool_choice": t.any_of(
        {"enum": ["none", "auto", "required", None]},
        *_CHOICES.values(),
        description="Whether one of the tools must be called, or which.",
    ),
    "parallel_tool_calls": t.flag("Whether several tools may be called at once.", default=True),
    "functions": t.array(
        {"type": "object"}, "The older name of tools, of which at most one is called.", MAX_TOOLS
    ),
    "function_call": t.any_of(
        {"enum": ["none", "auto", None]}, _CALLED, description="The older name of tool_choice."
    ),
}


@dataclass(frozen=True, slots=True)
class ParsedTools:
    """The tools that the model may call. `shown` has the tools for the template. If `required` names tools, the model
    must call a named tool. `several` says whether several calls are allowed. `field` names the request's field with the
    tools."""

    shown: tuple[Mapping[str, Any], ...] = ()
    required: tuple[str, ...] = ()
    several: bool = True
    field: str = "tools"

    def read_as(self, form: CallForm) -> tuple[ReadTool, ...]:
        functions = [tool["function"] for tool in self.shown]
        texts = [text_names(one["parameters"]) if form == "qwen-xml" else () for one in functions]
        return tuple(ReadTool(one["name"], names) for one, names in zip(functions, texts, strict=True))

    def callable(self, names: _Names = ()) -> Mapping[str, Mapping[str, Any]]:
        """Returns the schemas of tools' arguments, keyed by tool name. `names`: the tools, empty for all."""
        return {
            one["name"]: GrammarSchema(dict(one["parameters"]), f"tool-{at}-").schema | {"type": "object"}
            for at, one in enumerate(tool["function"] for tool in self.shown)
            if not names or one["name"] in names
        }


def read_tools(fields: BodyFields) -> ParsedTools:
    """Reads `tools`, or OpenAI's older form `functions`. Raises ApiError."""
    key, choice_key, several = "tools", "tool_choice", fields.get("parallel_tool_calls", True)
    if fields.get("functions") or fields.get("function_call") not in (None, "none", "auto"):
        key, choice_key, several = "functions", "function_call", False
        if fields.get("tools") or fields.get("tool_choice"):
            raise refused("'functions' is the older name of 'tools': give one", "functions")
        functions = [fields.inner(one, where, _FUNCTION) for where, one in fields.entries(key)]
    else:
        functions = [
            fields.inner(item, where, _TOOL).nested("function")
            for where, item in fields.entries(key)
            if is_function(fields, where, item)
        ]
    shown = [_shown(function) for function in functions]
    names = [one["name"] for one in shown]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise refused(f"'{key}' has two of the name {twice!r}", key)
    allowed, required = _choice(fields, choice_key, names, key)
    told = []
    for function, one in zip(functions, shown, strict=True):
        if one["name"] in allowed:  # reports or refuses what no grammar holds
            schema_of_grammar(function, "parameters", one["parameters"], strict=function.get("strict", False))
            told.append({"type": "function", "function": one})
    return ParsedTools(tuple(told), tuple(required), several, key)


def is_function(fields: BodyFields, where: str, tool: Mapping[str, object], known: str = "function") -> bool:
    """Whether `tool` has the type `known`. Reports a tool of another type as ignored. Raises ApiError."""
    kind, name = tool.get("type"), tool.get("name")
    if kind == known:
        return True
    if kind is not None and not isinstance(kind, str):
        raise fields.wrong_type(f"{where}.type", "a string", kind)
    if not kind:
        raise fields.wrong(f"{where}.type", f"is missing: of a function it is '{known}'")
    fields.ignore(f"{where}.{kind}.{name}" if isinstance(name, str) else f"{where}.{kind}")
    return False


def tool_form(tools: ParsedTools, model: ServedModel) -> CallForm:
    """Returns the form in which the model writes calls; "" without tools. Raises ApiError."""
    if not tools.shown:
        return ""
    template = model.template.source(tools=True) if model.template is not None else ""
    name = model.name
    form = call_form(template) if "tools" in template else ""
    if not form:
        why = ": its chat template knows none; use another model"
        if "tools" in template:
            why = " here: it writes calls in a form that is not known"
        # Clients that read "does not support tools" go on without them.
        raise refused(f"the model {name!r} does not support {tools.field}{why}", tools.field)
    return form


def text_names(schema: Mapping[str, Any]) -> tuple[str, ...]:
    properties = schema.get("properties")
    found = properties.items() if isinstance(properties, dict) else ()
    return tuple(name for name, value in found if isinstance(value, dict) and _is_text(value))


def _is_text(schema: Mapping[str, Any]) -> bool:
    choices = constants(schema)
    if "type" not in schema and choices:
        return all(isinstance(choice, str) for choice in choices)
    return bool(schema.get("type") == "string")


def constants(schema: Mapping[str, Any]) -> list[object]:
    """Returns the values that a schema lists as `enum` or `const`, else []."""
    found = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return found if isinstance(found, list) else []


def _shown(function: BodyFields) -> dict[str, Any]:
    name = function.needed("name")
    if not _NAME.fullmatch(name):
        why = f"must have 1 to {MAX_TOOL_NAME} letters, digits and '_', '-', '.', ':'"
        raise function.wrong("name", why)
    # Templates join descriptions to texts, so a missing one is empty.
    found: dict[str, Any] = {"name": name, "description": function.get("description") or ""}
    value = function.get("parameters") or {"type": "object", "properties": {}}
    schema = check_schema(value, function.name("parameters"))
    kind = schema.get("type", "object")  # the type of arguments
    if "object" not in (kind if isinstance(kind, list) else [kind]):
        raise function.wrong("parameters", "must be a schema of 'type': 'object'")
    return found | {"parameters": schema}


def _choice(fields: BodyFields, key: str, names: _Names, tools: str) -> tuple[_Names, _Names]:
    """Returns (callable tools, tools of which one must be called)."""
    value = fields.get(key)
    if value in (None, "auto"):
        return names, ()
    if value == "none":
        return (), ()
    if value == "required":
        if not names:
            raise refused(f"'{key}' is 'required', but there are no '{tools}'", key)
        return names, names
    if not isinstance(value, dict):
        raise refused(f"'{key}' must be 'none', 'auto', 'required' or a function", key)

    def known(function: BodyFields) -> str:
        name: str = function.get("name")
        if name not in names:
            raise refused(f"'{key}' names no function of '{tools}'", key)
        return name

    if tools == "functions":
        return names, (known(fields.inner(value, key, _CALLED)),)
    kind, choice = fields.kind(value, key, _CHOICES)
    if kind == "function":
        return names, (known(choice.nested("function")),)
    allowed = choice.nested("allowed_tools")
    chosen = [known(one.nested("function")) for _, one in allowed.kinds("tools", _NAMED)]
    if not chosen:
        raise allowed.wrong("tools", "is empty: give at least one function")
    return chosen, chosen if allowed.get("mode") == "required" else ()
