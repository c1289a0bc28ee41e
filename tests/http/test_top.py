import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from tests.http.conftest import SECRET
from tests.http.test_cluster import ATTIC, NODE
from tpiedge.cli import top as module
from tpiedge.cli.master_parts import only_master
from tpiedge.cli.top import top
from tpiedge.host.private_file import replace_private
from tpiedge.master.history import ClusterEvent
from tpiedge.wire.control import WorkerLink


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(module, "_LOOK_S", 0.0)


@pytest.fixture
def run(tmp_path, service, serve):
    service._nodes = (NODE, ATTIC)
    service.told = (ClusterEvent(1.7e9, "joined", "attic"),)
    replace_private(tmp_path / "master" / "admin.json", {"url": serve().url, "secret": SECRET})

    def invoke(*arguments):
        result = CliRunner().invoke(top, [*arguments, "--state", str(tmp_path)])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert (result.exit_code, result.stderr) == (0, "")
        return result.stdout

    with only_master(tmp_path / "master"):
        yield invoke


@pytest.mark.parametrize("arguments", [(), ("--once",)])
def test_top_prints_plain_lines(run, arguments):
    lines = run(*arguments).splitlines()
    assert lines[0] == "babbler: ready; 0 running, 0 queued"
    assert [line.split()[0] for line in lines[3:5]] == ["master", "attic"]
    assert "attic (192.0.2.7) waits to join: tpiedge nodes approve CODE, with the code on its screen" in lines
    assert lines[-1].endswith("attic joined")


def test_top_shows_round_trips_between_workers(run, service):
    assert "between workers" not in run()
    service._nodes = (NODE, ATTIC, replace(ATTIC, name="w-2", rank=2, host="barn"))
    service.links = (WorkerLink(1, 2, 0.0042),)
    lines = run().splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("between workers"))
    assert [line.split() for line in (lines[at], *lines[at + 2 : at + 4])] == [
        ["between", "workers", "1"],
        ["1", "attic"],
        ["2", "barn", "4.2", "ms"],
    ]


def test_top_json_prints_one_object(run):
    found = json.loads(run("--json"))
    assert found["object"] == "tpiedge.cluster"
    assert [one["name"] for one in found["machines"]] == ["master", "w-1"]
