"""Errors in the shape of the API that was asked, as each one's clients read them."""

from typing import Final

from tpiedge.api.errors import ApiError, PromptTooLong
from tpiedge.api.frames import Json
from tpiedge.api.origins import Headers

_ANTHROPIC: Final = "/v1/messages"
_ANTHROPIC_VERSION: Final = b"anthropic-version"
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


def is_anthropic(headers: Headers) -> bool:
    """Whether a client of Anthropic's API sent them: some of its paths are OpenAI's, too."""
    return any(name == _ANTHROPIC_VERSION for name, _ in headers)


def error_body(error: ApiError, path: str, headers: Headers = ()) -> Json:
    """Of an answer to a request for `path` with these headers."""
    if path == _ANTHROPIC or path.startswith(f"{_ANTHROPIC}/") or is_anthropic(headers):
        return anthropic_error(error)
    if path.startswith(_OLLAMA):
        return ollama_error(error)
    return error.body()


def anthropic_error(error: ApiError) -> Json:
    """{"type": "error", "error": {"type", "message"}}, and "details" where there are some."""
    usual = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _ANTHROPIC_KINDS.get(error.status, usual)
    message = error.message
    if isinstance(error, PromptTooLong):  # the words after which Claude Code shortens the conversation
        message = f"prompt is too long: {error.tokens} tokens > {error.maximum} maximum"
    more = {"details": error.details} if error.details else {}
    return {"type": "error", "error": {"type": kind, "message": message, **more}}


def ollama_error(error: ApiError) -> Json:
    """{"error": message}."""
    return {"error": error.message}
