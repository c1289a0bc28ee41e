"""Namespaces of tools, in which Codex sends those of MCP servers: the model knows a function by a name that begins with
its namespace."""

from typing import Final

from tpiedge.api.asked import MAX_TOOL_NAME

_JOINT: Final = "__"


def full_name(namespace: str, name: str) -> str:
    """The function's name for the model; `name` alone where there is no namespace, or both are too long for one."""
    full = f"{_prefix(namespace)}{name}"
    return full if len(full) <= MAX_TOOL_NAME else name


def bare_name(namespace: str, full: str) -> str:
    """The function's own name."""
    return full.removeprefix(_prefix(namespace))


def _prefix(namespace: str) -> str:
    return namespace if not namespace or namespace.endswith(_JOINT) else f"{namespace}{_JOINT}"
