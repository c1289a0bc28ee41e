"""What real clients send (`tools/record_clients.py` recorded it) is answered by a real cluster, in the shape that each
of them reads, or refused in the shape of its API: tests/corpus/refused.json says what, and in which words."""

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.process.serving.serving import Serving
from tests.process.serving.test_structured import calling_model
from tpiedge.api.azure import name_usual_path

CORPUS = Path(__file__).parents[2] / "corpus"
REFUSED = json.loads((CORPUS / "refused.json").read_text(encoding="utf-8"))
LIMIT_S = 120.0
#: Agents send many tools.
CONTEXT = 16_384


@pytest.fixture(scope="module")
def cluster(clusters: Callable[..., Serving], tmp_path_factory: pytest.TempPathFactory) -> Serving:
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    model = calling_model(tmp_path_factory.mktemp("model"))
    config = model / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": CONTEXT}))
    cluster = clusters(
        "--min-workers", 1, "--parallel", 4, "--context", CONTEXT, "--alias", "demo", model=str(model)
    )
    cluster.start_master()
    cluster.start_worker("ann")
    cluster.wait_ready(2)
    return cluster


@dataclass(frozen=True)
class Recorded:
    """A request: `name` is "CLIENT: USE", with a number where a use sends several."""

    name: str
    method: str
    path: str
    headers: dict[str, str]
    body: Any

    @property
    def usual_path(self) -> str:
        """The path that the others ask for, too, without its query."""
        scope = {"path": self.path.partition("?")[0]}
        name_usual_path(scope)
        return scope["path"]

    @property
    def streams(self) -> bool:
        asked = self.body or {}
        return bool(asked.get("stream", self.usual_path in ("/api/chat", "/api/generate")))


def recorded() -> Iterator[Recorded]:
    for path in sorted(CORPUS.glob("*.json")):
        if path.name == "refused.json":
            continue
        seen: dict[str, int] = {}
        for one in json.loads(path.read_text(encoding="utf-8"))["requests"]:
            use = f"{path.stem}: {one['use']}"
            seen[use] = seen.get(use, 0) + 1
            name = use if seen[use] == 1 else f"{use} {seen[use]}"
            yield Recorded(name, one["method"], one["path"], one["headers"], one["body"])


REQUESTS = list(recorded())


def asked(cluster: Serving, request: Recorded) -> httpx.Response:
    """Sent with the very headers, and no others."""
    content = b"" if request.body is None else json.dumps(request.body).encode()
    with httpx.Client(base_url=cluster.url, trust_env=False, timeout=LIMIT_S) as client:
        client.headers = httpx.Headers(request.headers)
        return client.request(request.method, request.path, content=content)


def events(answer: httpx.Response) -> list[tuple[str, Any]]:
    """The events of a stream, with their names."""
    found, name = [], ""
    for line in answer.text.split("\n"):
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            found.append((name, data if data == "[DONE]" else json.loads(data)))
            name = ""
    return found


def lines(answer: httpx.Response) -> list[Any]:
    return [json.loads(line) for line in answer.text.splitlines()]


# --- what is read in the answers, by path


def check_models(answer: httpx.Response, request: Recorded) -> None:
    cards = answer.json()["data"]
    assert "demo" in [card["id"] for card in cards]
    if "anthropic-version" in request.headers:
        assert {card["type"] for card in cards} == {"model"}
    else:
        assert "demo" in cards[0]["also_called"]


def check_model(answer: httpx.Response, request: Recorded) -> None:
    assert "demo" in answer.json()["also_called"]


def check_chat(answer: httpx.Response, request: Recorded) -> None:
    if not request.streams:
        found = answer.json()
        assert found["object"] == "chat.completion"
        assert len(found["choices"]) == request.body.get("n", 1)
        assert all(choice["finish_reason"] for choice in found["choices"])
        assert all(choice["message"]["role"] == "assistant" for choice in found["choices"])
        assert found["usage"]["total_tokens"] > found["usage"]["prompt_tokens"] > 0
        return
    *chunks, (_, done) = events(answer)
    assert done == "[DONE]"
    assert all(chunk["object"] == "chat.completion.chunk" for _, chunk in chunks)
    reasons = [choice["finish_reason"] for _, chunk in chunks for choice in chunk["choices"]]
    assert reasons[-1] in ("stop", "length", "tool_calls")
    if (request.body.get("stream_options") or {}).get("include_usage"):
        assert chunks[-1][1]["usage"]["completion_tokens"] > 0


def check_completion(answer: httpx.Response, request: Recorded) -> None:
    if not request.streams:
        found = answer.json()
        assert found["object"] == "text_completion"
        prompt = request.body["prompt"]
        prompts = len(prompt) if isinstance(prompt, list) and isinstance(prompt[0], str | list) else 1
        assert [choice["index"] for choice in found["choices"]] == list(
            range(prompts * request.body.get("n", 1))
        )
        assert all(isinstance(choice["text"], str) for choice in found["choices"])
        return
    *chunks, (_, done) = events(answer)
    assert done == "[DONE]"
    assert chunks[-1][1]["choices"][0]["finish_reason"] in ("stop", "length")


def check_embeddings(answer: httpx.Response, request: Recorded) -> None:
    found, given = answer.json(), request.body["input"]
    many = len(given) if isinstance(given, list) and not isinstance(given[0], int) else 1
    assert [one["index"] for one in found["data"]] == list(range(many))
    for one in found["data"]:
        vector = one["embedding"]
        if request.body.get("encoding_format") == "base64":
            vector = memoryview(base64.b64decode(vector)).cast("f").tolist()
        assert sum(value * value for value in vector) == pytest.approx(1.0, abs=1e-5)
    assert found["usage"]["total_tokens"] > 0


def check_response(answer: httpx.Response, request: Recorded) -> None:
    found = answer.json() if not request.streams else None
    if request.streams:
        said = events(answer)
        assert [name for name, _ in said] == [event["type"] for _, event in said]
        assert [event["sequence_number"] for _, event in said] == list(range(len(said)))
        found = said[-1][1]["response"]
    assert found["object"] == "response"
    assert found["status"] in ("completed", "incomplete")
    assert found["output"]
    assert found["usage"]["input_tokens"] > 0


def check_message(answer: httpx.Response, request: Recorded) -> None:
    if not request.streams:
        found = answer.json()
        assert (found["type"], found["role"]) == ("message", "assistant")
        assert found["stop_reason"] in ("end_turn", "max_tokens", "stop_sequence", "tool_use")
        assert found["content"]
        assert found["usage"]["output_tokens"] > 0
        return
    said = [(name, event) for name, event in events(answer) if name != "ping"]
    assert [name for name, _ in said] == [event["type"] for _, event in said]
    assert said[0][0] == "message_start"
    assert said[-2][1]["delta"]["stop_reason"] in ("end_turn", "max_tokens", "tool_use")
    assert said[-1][0] == "message_stop"


def check_counted(answer: httpx.Response, request: Recorded) -> None:
    assert answer.json()["input_tokens"] > 0


def check_ollama_answer(answer: httpx.Response, request: Recorded) -> None:
    said = lines(answer) if request.streams else [answer.json()]
    assert [one["done"] for one in said] == [False] * (len(said) - 1) + [True]
    assert all(one["model"] for one in said)
    key = "message" if request.usual_path == "/api/chat" else "response"
    assert all(key in one for one in said)
    assert said[-1]["done_reason"] in ("stop", "length", "load")


def check_cards(answer: httpx.Response, request: Recorded) -> None:
    models = answer.json()["models"]
    assert all(model["name"] == model["model"] for model in models)
    assert all(model["size"] > 0 for model in models)


def check_shown(answer: httpx.Response, request: Recorded) -> None:
    assert "completion" in answer.json()["capabilities"]


def check_version(answer: httpx.Response, request: Recorded) -> None:
    assert answer.json()["version"]


def check_embed(answer: httpx.Response, request: Recorded) -> None:
    given = request.body["input"]
    assert len(answer.json()["embeddings"]) == (1 if isinstance(given, str) else len(given))


def check_old_embedding(answer: httpx.Response, request: Recorded) -> None:
    assert answer.json()["embedding"]


def check_nothing(answer: httpx.Response, request: Recorded) -> None:
    assert request.method == "HEAD"


CHECKS: dict[str, Callable[[httpx.Response, Recorded], None]] = {
    "/": check_nothing,
    "/v1/models": check_models,
    "/v1/models/demo": check_model,
    "/v1/chat/completions": check_chat,
    "/v1/completions": check_completion,
    "/v1/embeddings": check_embeddings,
    "/v1/responses": check_response,
    "/v1/messages": check_message,
    "/v1/messages/count_tokens": check_counted,
    "/api/chat": check_ollama_answer,
    "/api/generate": check_ollama_answer,
    "/api/tags": check_cards,
    "/api/ps": check_cards,
    "/api/show": check_shown,
    "/api/version": check_version,
    "/api/embed": check_embed,
    "/api/embeddings": check_old_embedding,
}


def check_refusal(answer: httpx.Response, request: Recorded, wanted: dict[str, Any]) -> None:
    assert answer.status_code == wanted["status"]
    found = answer.json()
    error = found["error"]
    if request.path.startswith("/v1/messages"):
        assert found["type"] == "error"
    message = error if request.path.startswith("/api/") else error["message"]
    assert message == wanted["message"]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: one.name)
def test_what_a_client_sends_is_answered_or_refused_in_its_own_words(
    cluster: Serving, request_: Recorded
) -> None:
    answer = asked(cluster, request_)
    wanted = REFUSED.get(request_.name)
    if wanted is not None:
        check_refusal(answer, request_, wanted)
        return
    assert answer.status_code == 200, answer.text
    CHECKS[request_.usual_path](answer, request_)


def test_afterwards_the_cluster_answers_as_ever(cluster: Serving, exact: Callable[[Serving], None]) -> None:
    cluster.wait_until(lambda status: status["running"] == status["queued"] == 0)
    exact(cluster)


def test_every_refusal_is_of_a_request_that_was_recorded() -> None:
    assert set(REFUSED) <= {one.name for one in REQUESTS}
