"""Requests that name `functions` and a `function_call`, as OpenAI's clients did before there were tools, as chats."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tpiedge.api.asked import Asked
from tpiedge.api.errors import ApiError, refused
from tpiedge.api.service import Service

_OLD: Final = ("functions", "function_call")
_TOOL: Final = re.compile(r"\btools(?:\[(\d*)\])?(?:\.function)?")
_HARMLESS: Final = (None, "none", "auto")


def has_functions(values: dict[str, object]) -> bool:
    return values.get("functions") not in (None, []) or values.get("function_call") not in _HARMLESS


def read_functions(
    values: dict[str, object],
    service: Service,
    name: str,
    read: Callable[[dict[str, object], Service, str], Asked],
) -> Asked:
    """What the request asks for, as `read` has it with tools, of which at most one is called. Raises ApiError."""
    functions, call = values.get("functions") or [], values.get("function_call")
    if not isinstance(functions, list):
        raise refused("'functions' must be an array", "functions", "invalid_type")
    if values.get("tools") or values.get("tool_choice"):
        raise refused("'functions' is the older name of 'tools': give one", "functions")
    chat = {key: value for key, value in values.items() if key not in _OLD}
    chat["tools"] = [{"type": "function", "function": one} for one in functions]
    chat["tool_choice"] = {"type": "function", "function": call} if isinstance(call, dict) else call
    chat["parallel_tool_calls"] = False
    try:
        found = read(chat, service, name)
    except ApiError as error:
        param = None if error.param is None else _old_name(error.param)
        raise ApiError(error.status, _old_name(error.message), error.code, param=param) from None
    return replace(
        found,
        reply=replace(found.reply, functions=True),
        ignored=tuple(map(_old_name, found.ignored)),
    )


def _old_name(text: str) -> str:
    """With the names of the fields that the client sent."""
    named = _TOOL.sub(lambda tool: f"functions[{tool[1]}]" if tool[1] is not None else "functions", text)
    return named.replace("tool_choice", "function_call")
