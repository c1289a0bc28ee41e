"""Error responses in the form of each API: the HTTP status, code and message of each exception."""

import logging
import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers

from tpiedge import errors as known
from tpiedge.answers.log import ServerEnds, Superseded
from tpiedge.master.reconciler import CannotDrain
from tpiedge.master.request_queue import Dismissed, QueueFull
from tpiedge.sanitise import RateLimitedLog

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
#: The first match counts.
_KNOWN: Final[Sequence[tuple[type[Exception], int, str]]] = (
    (known.PeerLost, 503, "worker_lost"),
    (known.ChildLost, 503, "child_lost"),
    (known.PeerError, 503, "unavailable"),
    (known.UnknownWorker, 404, "unknown_worker"),
    (CannotDrain, 409, "cannot_drain"),
    (known.UserError, 400, "invalid_value"),
    (known.OutOfMemory, 503, "out_of_memory"),
    (known.ResourceError, 503, "resource_error"),
    (Dismissed, 403, "ended_by_administrator"),  # a status that no client retries by itself
    (Superseded, 409, "superseded"),
    (ServerEnds, 503, "shutting_down"),
    (known.Cancelled, 503, "cancelled"),
    (known.TpiedgeError, 500, "internal_error"),
)
_log = RateLimitedLog(logging.getLogger(__name__))


@dataclass(eq=False)
class ApiError(Exception):
    """An error response. `param`: the name of the field at fault. `details`: a field of Anthropic's errors."""

    status: int
    message: str
    code: str
    param: str | None = field(default=None, kw_only=True)
    headers: Mapping[str, str] | None = field(default=None, kw_only=True)
    details: Mapping[str, object] = field(default_factory=dict, init=False)

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, object]:
        usual = "invalid_request_error" if self.status < 500 else "server_error"
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(self.status, usual)
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


class PromptTooLong(ApiError):
    """A prompt of more than `maximum` tokens. `size` is the beginning of the message. `tokens` is a lower bound of the
    prompt's tokens. `text` is the prompt if not all tokens were counted, else ""."""

    def __init__(self, size: str, tokens: int, maximum: int, param: str, text: str = "") -> None:
        # Clients that read "maximum context length is" shorten the conversation.
        message = f"{size}: this model's maximum context length is {maximum} tokens"
        super().__init__(400, message, "context_length_exceeded", param=param)
        self.tokens, self.maximum, self.text = tokens, maximum, text


def refused(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    return ApiError(400, message, code, param=param)


def of_exception(error: BaseException, grammar: str | None = None) -> ApiError:
    """Makes an ApiError. Clients learn only the type of an unexpected error. `grammar`: the name of the field with the
    grammar."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFull):
        wait = {"Retry-After": str(max(1, math.ceil(error.retry_after_s)))}
        return ApiError(429, str(error), "queue_full", headers=wait)
    if isinstance(error, known.GrammarRefused):
        return refused(str(error), grammar)
    for kind, status, code in _KNOWN:
        if isinstance(error, kind):
            passes = code in ("worker_lost", "child_lost", "unavailable")
            return ApiError(status, str(error), code, headers={"Retry-After": "5"} if passes else None)
    words = f"a defect of tpiedge: {type(error).__name__}"
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    place = f"{Path(frames[0].filename).name}:{frames[0].lineno}" if frames else "an unknown place"
    # The error's message may quote a prompt.
    _log.warning("%s at %s: a request failed", words, place)
    return ApiError(500, words, "internal_error")


def is_anthropic(headers: Headers) -> bool:
    return "anthropic-version" in headers


def error_body(error: ApiError, path: str, headers: Headers) -> dict[str, object]:
    """Returns the error in the form of the client's API."""
    if f"{path}/".startswith("/v1/messages/") or is_anthropic(headers):
        return anthropic_error(error)
    return ollama_error(error) if path.startswith("/api/") else error.body()


def anthropic_error(error: ApiError) -> dict[str, object]:
    kind = _ANTHROPIC_KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    message = error.message
    if isinstance(error, PromptTooLong):  # Claude Code reads these words and shortens the conversation
        message = f"prompt is too long: {error.tokens} tokens > {error.maximum} maximum"
    more = {"details": error.details} if error.details else {}
    return {"type": "error", "error": {"type": kind, "message": message, **more}}


def ollama_error(error: ApiError) -> dict[str, object]:
    return {"error": error.message}
