"""The fields of tools that a model may call."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpiedge.api.answer_grammar import check_schema, schema_of_grammar
from tpiedge.api.asked import MAX_TEXT_NAME, MAX_TEXTS, MAX_TOOL_NAME, MAX_TOOLS
from tpiedge.api.errors import refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.grammar_schema import grammar_schema
from tpiedge.api.service import Service
from tpiedge.model.call_forms import CallForm, call_form

_NAME = re.compile(rf"[A-Za-z0-9_.:-]{{1,{MAX_TOOL_NAME}}}")


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool as grammars need it: its name, and what they hold of the schema of its arguments."""

    name: str
    schema: Mapping[str, Any]


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

    def callable(self, names: Sequence[str]) -> Sequence[CallableTool]:
        """Those of these names. Arguments are an object also where the schema allows other values, too."""
        functions = [(at, tool["function"]) for at, tool in enumerate(self.shown)]
        return [
            CallableTool(
                one["name"], grammar_schema(one["parameters"], _prefix(at)).schema | {"type": "object"}
            )
            for at, one in functions
            if one["name"] in names
        ]


def read_tools(fields: BodyFields) -> AskedTools:
    """None where the model is to call none of them. Raises ApiError."""
    value = fields.raw("tools")
    several = fields.flag("parallel_tool_calls", True)
    if value is not None and not isinstance(value, list):
        raise fields.wrong_type("tools", "an array", value)
    if value and len(value) > MAX_TOOLS:
        raise refused(f"'tools' has {len(value)} tools: at most {MAX_TOOLS}", "tools")
    value = [item for index, item in enumerate(value or ()) if not _is_no_function(item, index, fields)]
    shown = tuple(_tool(item, index, fields) for index, item in enumerate(value))
    names = [tool["function"]["name"] for tool in shown]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise refused(f"'tools' has two of the name {twice!r}", "tools")
    choice = _choice(fields, names)
    if choice is None:
        return AskedTools()
    allowed, required = choice
    for index, item in enumerate(value):
        if names[index] in allowed:
            _check_parameters(item["function"], shown[index]["function"]["parameters"], index, fields)
    return AskedTools(tuple(tool for tool in shown if tool["function"]["name"] in allowed), required, several)


def _check_parameters(
    function: Mapping[str, object], schema: Mapping[str, Any], index: int, fields: BodyFields
) -> None:
    """Tells what no grammar holds of a tool's parameters, or refuses it. Raises ApiError."""
    inner = fields.inner(function, f"tools[{index}].function")
    schema_of_grammar(inner, "parameters", schema, strict=inner.flag("strict"))


def _prefix(at: int) -> str:
    """The definitions of all tools stand beside each other."""
    return f"tool-{at}-"


def is_left_out(tool: BodyFields, functions: Sequence[str] = ("function",)) -> bool:
    """Whether a tool is no function, as a search that a vendor's servers run: noted by its type, and by its name where
    it has one. `functions` are the types of those that are. Raises ApiError for a tool without a type."""
    kind = tool.text("type")
    if kind in functions:
        return False
    if not kind:
        where = tool.name("type")
        raise refused(f"'{where}' is missing: of a function it is '{functions[0]}'", where)
    name = tool.raw("name")
    tool.pass_over(f"{kind}.{name}" if isinstance(name, str) else kind)
    return True


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


def text_parameters(tools: AskedTools) -> tuple[tuple[str, ...], ...]:
    """Of each tool, the parameters that are texts and nothing else."""
    return tuple(text_names(tool["function"]["parameters"]) for tool in tools.shown)


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


def _is_no_function(item: object, index: int, fields: BodyFields) -> bool:
    """Whether the model is not told of the tool, and the client is told so."""
    where = f"tools[{index}]"
    if not isinstance(item, dict):
        raise fields.wrong_type(where, "an object", item)
    return is_left_out(fields.inner(item, where))


def _tool(item: dict[str, object], index: int, fields: BodyFields) -> dict[str, Any]:
    where = f"tools[{index}]"
    tool = fields.inner(item, where)
    tool.raw("type")
    function = tool.nested("function")
    if function is None:
        raise refused(f"'{where}.function' is missing", f"{where}.function", "missing_required_parameter")
    name = function.text("name") or ""
    if not _NAME.fullmatch(name):
        raise refused(
            f"'{where}.function.name' must have 1 to {MAX_TOOL_NAME} letters, digits and '_', '-', '.', ':'",
            f"{where}.function.name",
        )
    # Templates join descriptions to texts: those of other servers give an empty one where there is none.
    found: dict[str, Any] = {"name": name, "description": function.text("description") or ""}
    found["parameters"] = _parameters(function)
    function.flag("strict")
    function.overlook()
    tool.overlook()
    return {"type": "function", "function": found}


def _parameters(function: BodyFields) -> dict[str, Any]:
    """A schema of objects, as arguments are. Raises ApiError."""
    value, param = function.raw("parameters"), function.name("parameters")
    if value in (None, {}):
        return {"type": "object", "properties": {}}
    schema = check_schema(value, param)
    kind = schema.get("type", "object")
    if "object" not in (kind if isinstance(kind, list) else [kind]):
        raise refused(f"'{param}' must be a schema of 'type': 'object'", param)
    return schema


def _choice(fields: BodyFields, names: Sequence[str]) -> tuple[Sequence[str], tuple[str, ...]] | None:
    """Which may be called, and of which one must be; None where none may be. Raises ApiError."""
    value = fields.raw("tool_choice")
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
    choice = fields.inner(value, "tool_choice")
    choice.unsupported(("custom",))
    if choice.text("type") == "allowed_tools":
        return _allowed(choice, names)
    name = _function_name(choice, names)
    return names, (name,)


def _allowed(choice: BodyFields, names: Sequence[str]) -> tuple[Sequence[str], tuple[str, ...]]:
    """Some of the tools, of which one may be called, or must be."""
    given = choice.nested("allowed_tools")
    tools = None if given is None else given.raw("tools")
    if given is None or not isinstance(tools, list) or not tools:
        where = choice.name("allowed_tools.tools")
        raise refused(f"'{where}' must be an array of at least one function", where)
    mode = given.text("mode")
    if mode not in ("auto", "required"):
        where = given.name("mode")
        raise refused(f"'{where}' must be 'auto' or 'required'", where)
    allowed = []
    for at, one in enumerate(tools):
        if not isinstance(one, dict):
            raise given.wrong_type(f"tools[{at}]", "an object", one)
        allowed.append(_function_name(given.inner(one, f"tools[{at}]"), names))
    return allowed, tuple(allowed) if mode == "required" else ()


def _function_name(choice: BodyFields, names: Sequence[str]) -> str:
    """The tool that a choice names. Raises ApiError."""
    function = choice.nested("function")
    name = None if function is None else function.text("name")
    if choice.text("type") != "function" or name is None or name not in names:
        raise refused("'tool_choice' names no function of 'tools'", "tool_choice")
    return name
