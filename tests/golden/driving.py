"""The driver sends requests to the HTTP application without a socket, and records what the cluster is asked for and
every byte that the client gets. Ids, times and seeds are always the same; nothing here knows how they are parsed."""

import asyncio
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest import mock

from tests.fakes.service import FakeGeneration, FakeService
from tests.http.conftest import KnowingTemplate
from tpiedge.answers.shelf import AnswerShelf
from tpiedge.api.guard import Guard
from tpiedge.api.keys import ApiKeys
from tpiedge.api.limits import Limits
from tpiedge.api.records import RecordFolder
from tpiedge.api.server import Api
from tpiedge.errors import GrammarRefused, InternalError, OutOfMemory, PeerLost
from tpiedge.master.reconciler import NotServing
from tpiedge.master.request_times import Reading
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.wire.control import PromptScores
from tpiedge.wire.requests import GenerationRequest

LIMIT_S: Final = 60.0
SHOWN: Final = 200
USUAL: Final = {
    b"cache-control": b"no-store", b"content-type": b"application/json", b"x-content-type-options": b"nosniff",
}  # fmt: skip
DURATION: Final = re.compile(rb'("(?:total|prompt_eval|eval)_duration": ?)\d+')
ERRORS: Final[Mapping[str, Callable[[str], Exception]]] = {
    "defect": RuntimeError,
    "grammar": GrammarRefused,
    "internal": InternalError,
    "lost": lambda cause: PeerLost(1, "step 4", cause),
    "memory": OutOfMemory,
    "unavailable": NotServing,
}


class TellingTemplate(KnowingTemplate):
    def render(self, messages: Any, *, tools: Any = None, variables: Any = None, **_more: Any) -> str:
        told = {"tools": tools, "variables": variables, "messages": messages}
        return json.dumps({key: value for key, value in told.items() if value}, ensure_ascii=False)


@dataclass
class Heard:
    """A client got this. `name`: the id of the answer; `whole`: whether the body came to its end."""

    status: int = 0
    name: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    whole: bool = False

    def take(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.name = dict(message["headers"]).get(b"x-request-id", b"").decode()
            self.headers = {
                name.decode(): value.decode()
                for name, value in sorted(message["headers"])
                if USUAL.get(name) != value and name not in (b"content-length", b"x-request-id")
            }
            if "allow" in self.headers:  # in any order
                self.headers["allow"] = ", ".join(sorted(self.headers["allow"].split(", ")))
            return
        self.body += DURATION.sub(rb"\g<1>0", message.get("body", b""))
        self.whole = not message.get("more_body", False)


class Cluster:
    """A service that answers by `script`, a list of [verb, argument...], and the application before it. `folder`: of
    the records of answers that clients may come again for."""

    def __init__(self, tokenizer: Tokenizer, folder: Path | None = None) -> None:
        service = FakeService(
            tokenizer, TellingTemplate(), vocab_size=2048, max_sequence=16_384, places=200, script=self._begin
        )
        service.also_called, service.most_postponed = ("demo",), 4096
        guard = Guard("localhost", ApiKeys(), "the-admin-secret")
        records = None if folder is None else RecordFolder(folder, "pack-1")
        self.service = service
        self.script: Sequence[Sequence[Any]] = ()
        self.requests: list[GenerationRequest] = []
        self._before: FakeGeneration | None = None
        self._api = Api(
            service, guard, Limits(quiet_s=LIMIT_S, ping_s=LIMIT_S), AnswerShelf(service), records
        )

    def close(self) -> None:
        self._api.close(LIMIT_S)

    async def hear(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Heard:
        self.requests, self._before = [], None
        heard, parts = Heard(), [{"type": "http.request", "body": body}]

        async def receive() -> dict[str, Any]:
            if parts:
                return parts.pop()
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Mapping[str, Any]) -> None:
            heard.take(message)

        where, _, query = path.partition("?")
        sent = {"host": "localhost", **headers}
        scope = {
            "type": "http", "method": method, "path": where, "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items()],
            "client": ("127.0.0.1", 9), "state": {},
        }  # fmt: skip
        async with asyncio.timeout(LIMIT_S):
            await self._api(scope, receive, send)
        return heard

    def _begin(self, generation: FakeGeneration) -> None:
        """Choices are said one after the other, for who says two at once says them in any order."""
        before, self._before = self._before, generation
        self.requests.append(generation.request)
        if before is None:
            self._play(generation)
        else:
            threading.Thread(target=self._play, args=(generation, before), daemon=True).start()

    def _play(self, generation: FakeGeneration, before: FakeGeneration | None = None) -> None:
        if before is not None:
            before.ended.wait(LIMIT_S)
        request, encode = generation.request, self.service.tokenizer.encode
        if request.pooling != "none":
            generation.embed(0.5, -1.0, 0.25, float(len(request.prompt_ids)))
            generation.finish("stop")
            return
        if request.prompt_scores:
            for at in range(1, len(request.prompt_ids)):
                likeliest = ((7, -0.25), (request.prompt_ids[at], -1.0 - at))
                generation.tell(PromptScores(1, request.id, at, (-1.0 - at,), likeliest))
        for verb, *given in self.script:
            match verb:
                case "say":
                    generation.say(*encode(given[0], add_special=False))
                case "tokens":
                    generation.say(*given[0])
                case "pause":
                    generation.pause(given[0])
                case "resume":
                    generation.resume(given[0])
                case "read":
                    generation.tell(Reading(*given))
                case "fail":
                    generation.fail(ERRORS[given[0]](given[1]))
                case "finish":
                    generation.finish(given[0], cached=3)
                case _:
                    raise ValueError(verb)


@contextmanager
def fixed() -> Iterator[None]:
    with ExitStack() as stack:
        for name, value in (
            ("secrets.token_hex", lambda count=32: "0" * 2 * count),
            ("secrets.randbits", lambda _bits: 7),
            ("time.time", lambda: 1_000_000_000.0),
            ("tpiedge.api.answering._OPEN_S", LIMIT_S),
            ("tpiedge.api.server._HEARD_S", 0.0),
        ):
            stack.enter_context(mock.patch(name, value))
        yield


def cluster_requests(requests: Sequence[GenerationRequest], tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns what the cluster was asked for, in words that no class or field of the program need have: the whole
    first request, and of the others their prompts and seeds."""
    first, drawn = requests[0], requests[0].sampling
    prompts = [shown(tokenizer.decode(one.prompt_ids, skip_special=False)) for one in requests]
    found = {
        "requests": len(requests),
        "prompt": prompts[0] if len(set(prompts)) == 1 else prompts,
        "prompt tokens": len(first.prompt_ids),
        "most tokens": first.max_tokens,
        "temperature": drawn.temperature,
        "top k": drawn.top_k,
        "top p": drawn.top_p,
        "min p": drawn.min_p,
        "repetition penalty": drawn.repetition_penalty,
        "presence penalty": drawn.presence_penalty,
        "frequency penalty": drawn.frequency_penalty,
        "bias": {str(token): bias for token, bias in drawn.logit_bias},
        "seed": drawn.seed,
        "last seed": requests[-1].sampling.seed,
        "scores": drawn.logprobs,
        "end tokens": list(first.stop_ids),
        "past the end": first.ignore_eos,
        "kept prefix": first.keep_prefix,
        "scores of the prompt": first.prompt_scores,
        "pooling": first.pooling,
    }
    if first.grammar is not None:
        held = first.grammar
        found["grammar"] = [held.kind, shown(held.text), held.begins, list(held.thoughts)]
    return found


def shown(text: str) -> str:
    if len(text) <= SHOWN:
        return text
    return f"{len(text)} characters {digest(text.encode())}: {text[:60]}"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
