"""Errors as clients read them: OpenAI's {"error": {"message", "type", "param", "code"}}, and the shapes of the other
APIs."""

import logging
import math
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tpiedge.answers.generation import Busy, Unavailable
from tpiedge.answers.log import ServerEnds, Superseded
from tpiedge.api.frames import Json
from tpiedge.errors import (
    Cancelled,
    ChildLost,
    GrammarRefused,
    OutOfMemory,
    PeerError,
    PeerLost,
    ResourceError,
    TpiedgeError,
    UnknownWorker,
    UserError,
)
from tpiedge.master.reconciler import CannotDrain
from tpiedge.master.request_queue import Dismissed
from tpiedge.rate_limited_log import RateLimitedLog

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
_log = RateLimitedLog(logging.getLogger(__name__))


class ApiError(Exception):
    """An answer that is an error: `status` and `headers` of HTTP, `param` the field of the request at fault, `details`
    what clients of Anthropic's read of it."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = dict(headers or {})
        self.details = dict(details or {})

    @property
    def kind(self) -> str:
        """OpenAI's `type`."""
        if self.status == 401:
            return "authentication_error"
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def body(self) -> dict[str, object]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


class PromptTooLong(ApiError):
    """A prompt of more than `maximum` tokens. Clients that read "maximum context length is" shorten the conversation.

    `size`: what is said of the prompt, the value of `param`; `tokens`: how many it has, or at least has; `text`: what
    they are counted in where that is not yet known.
    """

    def __init__(self, size: str, tokens: int, maximum: int, param: str, text: str = "") -> None:
        message = f"{size}: this model's maximum context length is {maximum} tokens"
        super().__init__(400, message, "context_length_exceeded", param=param)
        self.tokens = tokens
        self.maximum = maximum
        self.text = text


def refused(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """A request that is wrong, at `param`."""
    return ApiError(400, message, code, param=param)


def of_exception(error: BaseException, grammar: str | None = None) -> ApiError:
    """What a client is told of `error`; nothing of the inside where it is a defect, whose place the log tells.
    `grammar`: the field of the request that says what the answer must keep to."""
    match error:
        case ApiError():
            return error
        case Busy():
            wait = {"Retry-After": str(max(1, math.ceil(error.retry_after_s)))}
            return ApiError(429, str(error), "queue_full", headers=wait)
        case PeerLost():
            return ApiError(503, str(error), "worker_lost", headers={"Retry-After": "5"})
        case ChildLost():
            return ApiError(503, str(error), "child_lost", headers={"Retry-After": "5"})
        case Unavailable() | PeerError():
            return ApiError(503, str(error), "unavailable", headers={"Retry-After": "5"})
        case UnknownWorker():
            return ApiError(404, str(error), "unknown_worker")
        case CannotDrain():
            return ApiError(409, str(error), "cannot_drain")
        case GrammarRefused():
            return refused(str(error), grammar)
        case UserError():
            return refused(str(error))
        case OutOfMemory():
            return ApiError(503, str(error), "out_of_memory")
        case ResourceError():
            return ApiError(503, str(error), "resource_error")
        case Dismissed():  # no client is to try it again by itself
            return ApiError(403, str(error), "ended_by_administrator")
        case Superseded():
            return ApiError(409, str(error), "superseded")
        case ServerEnds():
            return ApiError(503, str(error), "shutting_down")
        case Cancelled():
            return ApiError(503, str(error), "cancelled")
        case TpiedgeError():
            return ApiError(500, str(error), "internal_error")
    words = f"a defect of tpiedge: {type(error).__name__}"
    # Not what it says, which may be of a prompt.
    _log.warning("%s at %s: a request failed", words, _place(error))
    return ApiError(500, words, "internal_error")


def _place(error: BaseException) -> str:
    """Where it was raised: the file and line."""
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    return f"{Path(frames[0].filename).name}:{frames[0].lineno}" if frames else "an unknown place"


def is_anthropic(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether a client of Anthropic's API sent them: some of its paths are OpenAI's, too."""
    return any(name == _ANTHROPIC_VERSION for name, _ in headers)


def error_body(error: ApiError, path: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> Json:
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
