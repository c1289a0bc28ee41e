"""What a run of nemesis comes to, and its faults, without a cluster."""

import ast
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tools.nemesis import figures, forms, nemesis, stage
from tools.nemesis.forms import FORMS, differences, folded, whole_answer
from tools.nemesis.readers import Found, Pause
from tpiedge.master.history import PLANNED

FOLDER = Path(nemesis.__file__).parent


def test_every_kind_has_faults_with_names_of_their_own() -> None:
    assert tuple(nemesis.FAULTS) == stage.KINDS
    names = [name for faults in nemesis.FAULTS.values() for name in faults]
    assert len(names) == len(set(names))


def test_pauses_count_from_what_changed_last_before_them() -> None:
    changes = [
        (100.0, "nothing"),
        (110.0, "node killed"),
        (105.0, "link cut"),
    ]  # as they ended, not as they began
    cut = [Pause(106.0, 105.0 + seconds, "node 1 was lost") for seconds in range(1, 21)]
    planned = Pause(117.0, 120.5, f"the answer pauses: {PLANNED}")
    found = Found(pauses=[*cut, Pause(110.25, 110.5, "node 2 was lost"), planned])
    record = figures.pauses(found, changes, reading_s=0.5, prefill_s=1.0)
    assert (record["bound_s"], record["planned_bound_s"]) == (5.0, 3.0)
    assert record["seconds_by_kind"] == {
        "link cut": {"pauses": 20, "median": 10.5, "p95": 19.0, "max": 20.0, "beyond": 15},
        "node killed": {"pauses": 1, "median": 0.5, "p95": 0.5, "max": 0.5, "beyond": 0},
        PLANNED: {"pauses": 1, "median": 3.5, "p95": 3.5, "max": 3.5, "beyond": 1},
    }
    assert record["seconds_to_the_next_token"]["pauses"] == 21
    assert record["changes"] == ["0.0 s nothing", "5.0 s link cut", "10.0 s node killed"]
    assert record["pauses"][-2] == "10.0 s node killed, 0.5 s: node 2 was lost"


def test_without_a_pause() -> None:
    assert figures.pauses(Found(), [(0.0, "nothing")], 0.0, 0.0)["seconds_to_the_next_token"] is None


def test_the_floor_plan_names_every_module() -> None:
    plan = ast.get_docstring(ast.parse((FOLDER / "__init__.py").read_text())) or ""
    for path in FOLDER.glob("[a-z]*.py"):
        assert f"`{path.stem}`" in plan


def chunk(text: str, index: int = 0, **more: object) -> dict:
    choice = {"index": index, "delta": {"role": "assistant", "content": text}, "finish_reason": None} | more
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "choices": [choice]}


def test_an_answer_is_the_same_however_it_is_cut_into_events() -> None:
    cut = [chunk("Once "), chunk("A", 1), chunk("upon"), chunk("", finish_reason="stop")]
    joined = [chunk("A", 1), chunk("Once upon", finish_reason="stop")]
    assert folded(cut) == folded(joined)
    assert folded(cut)[".choices[0].delta.content"] == "Once upon"


def test_a_token_more_or_less_is_a_difference() -> None:
    right = folded([chunk("Once upon", finish_reason="stop")])
    assert differences(right, right) == ""
    for wrong in ([chunk("Once upo", finish_reason="stop")], [chunk("Once upon")], [chunk("OnceOnce upon")]):
        assert "belongs" in differences(folded(wrong), right)


def test_lists_go_on_and_calls_have_places_of_their_own() -> None:
    def call(index: int, arguments: str) -> dict:
        delta = {"tool_calls": [{"index": index, "id": "x", "function": {"arguments": arguments}}]}
        return {"choices": [{"index": 0, "token_ids": [index], "delta": delta}]}

    found = folded([call(0, "{"), call(0, "}"), call(1, "[]")])
    assert found[".choices[0].token_ids"] == [0, 0, 1]
    assert found[".choices[0].delta.tool_calls[0].function.arguments"] == "{}"
    assert found[".choices[0].delta.tool_calls[1].function.arguments"] == "[]"


def test_forms_have_names_of_their_own() -> None:
    assert len({form.name for form in FORMS}) == len(FORMS) == 20


def cut(_request: httpx.Request) -> httpx.Response:
    def data() -> Iterator[bytes]:
        yield b"\n"
        raise httpx.ReadError("cut")

    return httpx.Response(200, headers={"x-resumable": "yes", "x-request-id": "cmpl-1"}, content=data())


def away(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


def test_a_whole_answer_is_asked_for_until_there_is_a_master(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "_AGAIN_S", 0.0)
    asked: list[str] = []
    replies = iter(
        (cut, away, lambda _: httpx.Response(503), cut, away, lambda _: httpx.Response(200, json={"a": 1}))
    )

    def reply(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.method} {request.url.path}")
        return next(replies)(request)

    with httpx.Client(base_url="http://master", transport=httpx.MockTransport(reply)) as client:
        assert whole_answer(client, "/v1/completions", {}) == {"a": 1}
    assert asked == ["POST /v1/completions"] + ["GET /v1/completions/cmpl-1"] * 5
