"""The fields of tools that a model may call."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tpiedge.api import fields as t
from tpiedge.api.answer_grammar import check_schema, schema_of_grammar
from tpiedge.api.asked import MAX_TEXT_NAME, MAX_TEXTS, MAX_TOOL_NAME, MAX_TOOLS
from tpiedge.api.errors import refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.grammar_schema import grammar_schema
from tpiedge.api.service import Service
from tpiedge.model.call_reader import CallForm, call_form

_NAME: Final = re.compile(rf"[A-Za-z0-9_.:-]{{1,{MAX_TOOL_NAME}}}")
_FUNCTION: Final = t.body(
    "name",
    name={**t.TEXT, "pattern": f"^{_NAME.pattern}$"},
    description=t.text(),
    parameters=t.OBJECT,
    strict=t.flag("Where a call is required it is always so."),
)
_TOOL: Final = t.body("type", "function", type={"const": "function"}, function=_FUNCTION)
_NAMED: Final = t.tagged(
    "type", function=t.body("function", function=t.body("name", name=t.TEXT), custom=t.unsupported())
)
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
    "parallel_tool_calls": t.flag("Whether several tools may be called at once; true without."),
}


@dataclass(frozen=True, slots=True)
class AskedTools:
    """What the model may call. `shown`: as its template is told; `required`: the names of which the answer must call
    one; `several`: whether it may call more."""

    shown: tuple[Mapping[str, Any], ...] = ()
    required: tuple[str, ...] = ()
    several: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tool["function"]["name"] for tool in self.shown)

    @property
    def schemas(self) -> tuple[Mapping[str, Any], ...]:
        """The schemas of their arguments."""
        return tuple(tool["function"]["parameters"] for tool in self.shown)

    def callable(self, names: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """The tools of these names, and what grammars hold of the schemas of their arguments, which are an object also
        where the schema allows other values, too. The definitions of all tools stand beside each other."""
        return {
            name: grammar_schema(dict(schema), f"tool-{at}-").schema | {"type": "object"}
            for at, (name, schema) in enumerate(zip(self.names, self.schemas, strict=True))
            if name in names
        }


def read_tools(fields: BodyFields) -> AskedTools:
    """Reads the tools; without any where the model is to call none of them. Raises ApiError."""
    several = fields.get("parallel_tool_calls", True)
    tools = [
        fields.inner(item, where, _TOOL)
        for where, item in fields.entries("tools")
        if is_function(fields, where, item)
    ]
    functions = [tool.nested("function") for tool in tools]
    shown = [_shown(function) for function in functions]
    names = [one["name"] for one in shown]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise refused(f"'tools' has two of the name {twice!r}", "tools")
    choice = _choice(fields, names)
    if choice is None:
        return AskedTools()
    allowed, required = choice
    for function, one in zip(functions, shown, strict=True):
        if one["name"] in allowed:  # says what no grammar holds of its parameters, or refuses it
            schema_of_grammar(function, "parameters", one["parameters"], strict=function.get("strict", False))
    told = tuple({"type": "function", "function": one} for one in shown if one["name"] in allowed)
    return AskedTools(told, required, several)


def is_function(
    fields: BodyFields, where: str, tool: Mapping[str, object], functions: Sequence[str] = ("function",)
) -> bool:
    """Whether the tool at that place is a function. Another, as a search that a vendor's servers run, is noted by its
    type, and by its name where it has one. `functions` are the types of those that are. Raises ApiError for a tool
    without a type."""
    kind, name = tool.get("type"), tool.get("name")
    if kind in functions:
        return True
    if kind is not None and not isinstance(kind, str):
        raise fields.wrong_type(f"{where}.type", "a string", kind)
    if not kind:
        raise fields.wrong(f"{where}.type", f"is missing: of a function it is '{functions[0]}'")
    fields.note(f"{where}.{kind}.{name}" if isinstance(name, str) else f"{where}.{kind}")
    return False


def tool_form(tools: AskedTools, service: Service) -> CallForm:
    """How the model writes calls; "" where it has nothing to call. Raises ApiError where it cannot be told of tools."""
    if not tools.shown:
        return ""
    template = service.template.source(tools=True) if service.template is not None else ""
    name = service.model().name
    # Clients that read "does not support tools" go on without them.
    if "tools" not in template:
        raise refused(
            f"the model {name!r} does not support tools: its chat template knows none; use another model",
            "tools",
        )
    form = call_form(template)
    if not form:
        raise refused(
            f"the model {name!r} does not support tools here: it writes calls in a form that is not known",
            "tools",
        )
    return form


def text_names(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The parameters of a tool of that schema that are texts and nothing else; of many, the first."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return ()
    names = [name for name, value in properties.items() if _is_text(value) and len(name) <= MAX_TEXT_NAME]
    return tuple(names[:MAX_TEXTS])


def _is_text(schema: object) -> bool:
    """Whether all values of the schema are texts, as far as it says so itself."""
    if not isinstance(schema, dict):
        return False
    choices = schema.get("enum", [schema["const"]] if "const" in schema else ())
    if "type" not in schema and isinstance(choices, list):
        return bool(choices) and all(isinstance(choice, str) for choice in choices)
    return schema.get("type") == "string"


def _shown(function: BodyFields) -> dict[str, Any]:
    """A function as templates are told of it. Raises ApiError."""
    name = function.needed("name")
    if not _NAME.fullmatch(name):
        why = f"must have 1 to {MAX_TOOL_NAME} letters, digits and '_', '-', '.', ':'"
        raise function.wrong("name", why)
    # Templates join descriptions to texts: those of other servers give an empty one where there is none.
    found: dict[str, Any] = {"name": name, "description": function.get("description") or ""}
    value = function.get("parameters") or {"type": "object", "properties": {}}
    schema = check_schema(value, function.name("parameters"))
    kind = schema.get("type", "object")  # as arguments are
    if "object" not in (kind if isinstance(kind, list) else [kind]):
        raise function.wrong("parameters", "must be a schema of 'type': 'object'")
    return found | {"parameters": schema}


def _choice(fields: BodyFields, names: Sequence[str]) -> tuple[Sequence[str], tuple[str, ...]] | None:
    """Which may be called, and of which one must be; None where none may be. Raises ApiError."""
    value = fields.get("tool_choice")
    if value in (None, "auto"):
        return names, ()
    if value == "none":
        return None
    if value == "required":
        if not names:
            raise refused("'tool_choice' is 'required', but there are no 'tools'", "tool_choice")
        return names, tuple(names)
    if not isinstance(value, dict):
        raise refused("'tool_choice' must be 'none', 'auto', 'required' or a function", "tool_choice")
    kind, choice = fields.kind(value, "tool_choice", _CHOICES)
    if kind == "function":
        return names, (_function_name(choice, names),)
    allowed = choice.nested("allowed_tools")
    chosen = [_function_name(one, names) for _, one in allowed.kinds("tools", _NAMED)]
    if not chosen:
        raise allowed.wrong("tools", "is empty: give at least one function")
    return chosen, tuple(chosen) if allowed.get("mode") == "required" else ()


def _function_name(choice: BodyFields, names: Sequence[str]) -> str:
    """The tool that a choice names. Raises ApiError."""
    name: str = choice.nested("function").get("name")
    if name not in names:
        raise refused("'tool_choice' names no function of 'tools'", "tool_choice")
    return name
