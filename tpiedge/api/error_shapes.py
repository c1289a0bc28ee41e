"""Errors in the shape of the API that was asked, as each one's clients read them."""

from typing import Final

from tpiedge.api.errors import ApiError
from tpiedge.api.frames import Json

__all__ = ["anthropic_error", "error_body", "ollama_error"]

_ANTHROPIC: Final = "/v1/messages"
_OLLAMA: Final = "/api/"
_ANTHROPIC_KINDS: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: ApiError, path: str) -> Json:
    """Of an answer to a request for `path`."""
    if path == _ANTHROPIC or path.startswith(f"{_ANTHROPIC}/"):
        return anthropic_error(error)
    if path.startswith(_OLLAMA):
        return ollama_error(error)
    return error.body()


def anthropic_error(error: ApiError) -> Json:
    """{"type": "error", "error": {"type", "message"}}, and "details" where there are some."""
    usual = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _ANTHROPIC_KINDS.get(error.status, usual)
    more = {"details": error.details} if error.details else {}
    return {"type": "error", "error": {"type": kind, "message": error.message, **more}}


def ollama_error(error: ApiError) -> Json:
    """{"error": message}."""
    return {"error": error.message}
