"""Plans travel as a line of JSON; what makes no sense is refused in words before anything is made."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tpiedge.errors import UserError
from tpiedge.lab.testbed.switch.plan import Port, SwitchLink, SwitchPlan, changed_links, check_plan

_PORT = Port("a", "/proc/1/ns/net", "eth0", "10.0.0.1", 24, "02:00:00:00:00:01")
_OTHER = replace(_PORT, device="b", address="10.0.0.2", mac="02:00:00:00:00:02", segmentation=False)
_LINK = SwitchLink("up", 0.001, 0.0005, 0.01, 37.5e6, 1 << 18)
_PLAN = SwitchPlan((_PORT, _OTHER), (_LINK, SwitchLink("down", 0.0)), {"a": {"b": (0, 1)}, "b": {}}, seed=9)


def test_it_comes_back_as_it_went_in_one_line() -> None:
    assert "\n" not in _PLAN.to_json()
    assert SwitchPlan.from_json(_PLAN.to_json()) == _PLAN
    check_plan(_PLAN)


def _record(**changes: Any) -> str:
    return json.dumps({**json.loads(_PLAN.to_json()), **changes})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ready",
        "[]",
        "null",
        "{}",
        _record(ports=None),
        _record(ports=[{"device": "a"}]),
        _record(links=[{"name": "up", "latency_s": 0, "colour": "red"}]),
        _record(paths=[]),
        _record(paths={"a": []}),
        _record(paths={"a": {"b": 1}}),
    ],
)
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="not a plan of a switch"):
        SwitchPlan.from_json(text)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (replace(_PLAN, paths={"a": {"b": (2,)}}), "a link that is not there"),
        (replace(_PLAN, paths={"a": {"b": (-1,)}}), "a link that is not there"),
    ],
)
def test_a_plan_must_hang_together(plan: SwitchPlan, said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_plan(plan)


_BAD_SETTINGS: list[dict[str, Any]] = [
    {"latency_s": -1},
    {"latency_s": 61},
    {"latency_s": None},
    {"latency_s": "1ms"},
    {"latency_s": float("nan")},
    {"latency_s": 10**400},
    {"jitter_s": -0.1},
    {"loss": 1.1},
    {"bytes_per_s": 0},
    {"bytes_per_s": float("inf")},
    {"queue_bytes": -1},
]


@pytest.mark.parametrize("settings", _BAD_SETTINGS, ids=str)
def test_a_link_must_make_sense_at_first_and_later(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"link 'up': .*{next(iter(settings))}"):
        check_plan(replace(_PLAN, links=(replace(_LINK, **settings),), paths={}))
    with pytest.raises(UserError, match=f"link 'up': .*{next(iter(settings))}"):
        changed_links({"up": _LINK}, {"up": settings})


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (None, "must be an object"),
        ([], "must be an object"),
        ({"up": 3}, "the settings must be some of latency_s"),
        ({"sideways": {}}, "there is no link 'sideways'; there are: up"),
        ({"up": {"colour": 1}}, "the settings must be some of latency_s"),
        ({"up": {"name": "down"}}, "the settings must be some of latency_s"),
    ],
)
def test_a_change_must_name_what_there_is(wanted: object, said: str) -> None:
    with pytest.raises(UserError, match=said):
        changed_links({"up": _LINK}, wanted)


def test_a_change_leaves_the_rest_as_it_was() -> None:
    changed = changed_links({"up": _LINK}, {"up": {"latency_s": 1, "bytes_per_s": None}})
    assert changed == [replace(_LINK, latency_s=1, bytes_per_s=None)]
