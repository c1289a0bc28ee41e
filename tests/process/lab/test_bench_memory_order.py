"""What `bench memory --cgroup` lets another process do is what it reports."""

import json
from dataclasses import asdict

import pytest

from tpiedge.lab.bench.memory_runs import Budget, budgets
from tpiedge.lab.verbs.bench_memory import _Order, _order, _planned, _Work
from tpiedge.local import launch
from tpiedge.local.launch import Layout
from tpiedge.local.prepare import PreparedModel, prepare

WORK = _Work(prompt_tokens=8, tokens=4, in_group=True)


@pytest.fixture(scope="module")
def model() -> PreparedModel:
    return prepare("demo", None, None, None)


@pytest.fixture(params=[(1, "1"), (2, "3,1")], ids=["1", "3,1"])
def found(request: pytest.FixtureRequest, model: PreparedModel) -> list[Budget]:
    nodes, shares = request.param
    capacity = WORK.prompt_tokens + WORK.tokens
    return budgets("window,min,50%,all", model, Layout(nodes, shares, 1, None), capacity)


def test_the_other_process_holds_what_the_report_says(
    model: PreparedModel, found: list[Budget], monkeypatch: pytest.MonkeyPatch
) -> None:
    for budget in found:
        room = budget.nbytes * budget.layout.nodes
        monkeypatch.setattr(launch, "_available_bytes", lambda room=room: room)
        order = _Order(**json.loads(json.dumps(asdict(_order(model, budget, WORK)))))
        assert order.memory_bytes == budget.nbytes, "a larger model would get less of its own group's memory"
        planned = _planned(order, model)
        assert planned.held(model) == budget.held(model), budget.name
        assert planned.plan.shares == budget.plan.shares
        assert planned.layout.keeping == budget.layout.keeping
