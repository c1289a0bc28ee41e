"""Paths of Azure's OpenAI: the same API below /openai/v1 or, older, below the name of a deployment."""

import re
from collections.abc import MutableMapping
from typing import Any, Final

_NEWER: Final = "/openai/v1/"
_DEPLOYMENT: Final = re.compile(r"/openai/deployments/(.+?)/((?:chat/)?completions|embeddings)")
_KEY: Final = "tpiedge.deployment"


def name_usual_path(scope: MutableMapping[str, Any]) -> None:
    """Gives a request for a path of Azure's the path that everybody else asks for."""
    path = scope["path"]
    if path.startswith(_NEWER):
        scope["path"] = f"/v1/{path.removeprefix(_NEWER)}"
    elif found := _DEPLOYMENT.fullmatch(path):
        scope[_KEY], scope["path"] = found[1], f"/v1/{found[2]}"


def deployment_of(scope: MutableMapping[str, Any]) -> str | None:
    """What the path names in place of the body's model, if it does."""
    found: str | None = scope.get(_KEY)
    return found
