from pathlib import Path

from tools.nemesis import figures, nemesis
from tools.nemesis.forms import folded
from tools.nemesis.readers import Found, Pause
from tpiedge.master.history import PLANNED

FOLDER = Path(nemesis.__file__).parent


def test_pauses_are_timed_from_the_last_change_before() -> None:
    changes = [
        (100.0, "nothing"),
        (110.0, "node killed"),
        (105.0, "link cut"),
    ]  # as they ended, not as they began
    cut = [Pause(106.0, 105.0 + seconds, "node 1 was lost") for seconds in range(1, 21)]
    planned = Pause(117.0, 120.5, f"paused: {PLANNED}")
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


def chunk(text: str, index: int = 0, **more: object) -> dict:
    choice = {"index": index, "delta": {"role": "assistant", "content": text}, "finish_reason": None} | more
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "choices": [choice]}


def test_folded_answer_ignores_event_boundaries() -> None:
    cut = [chunk("Once "), chunk("A", 1), chunk("upon"), chunk("", finish_reason="stop")]
    joined = [chunk("A", 1), chunk("Once upon", finish_reason="stop")]
    assert folded(cut) == folded(joined)
    assert folded(cut)[".choices[0].delta.content"] == "Once upon"
