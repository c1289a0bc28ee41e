"""Servers that end while an accepted prompt is read: only those that failed count against the request."""

import httpx
import pytest

from tests.http.test_resuming import (
    BODY,
    LIMIT_S,
    PACK,
    WORDS,
    connect,
    left,
    wait_until,
    wait_until_forgotten,
)
from tpiedge.api.record_folder import RecordFolder
from tpiedge.errors import Cancelled, MasterFailed
from tpiedge.master.journal import GUILTY


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "answers"


@pytest.fixture
def keep(serve, folder):
    return lambda: serve(records=RecordFolder(folder, PACK))


def asked(keep, service):
    """Asks, and ends the server while the prompt is read. Returns the answer's path."""
    server = keep()
    with connect(server) as http, http.stream("POST", "/v1/completions", json=BODY) as answer:
        service.generations.get(timeout=LIMIT_S)
        server.close()
        with pytest.raises(httpx.RemoteProtocolError):
            answer.read()
        return f"/v1/completions/{answer.headers['x-request-id']}"


def taken_up(keep, service, record):
    """The next server, and what it goes on with."""
    server = keep()
    assert server.recovered == 1
    generation = service.generations.get(timeout=LIMIT_S)
    before = record.read_bytes().count(b"taken up")
    generation.take_up()
    wait_until(lambda: record.read_bytes().count(b"taken up") == before + 1)
    return server, generation


def test_servers_that_end_in_order_do_not_count(keep, service, folder):
    """However often, and though what runs is told that it is cancelled."""
    path = asked(keep, service)
    (record,) = left(folder)
    written = record.read_bytes()
    for _ in range(GUILTY + 1):
        server, generation = taken_up(keep, service, record)
        server.close()
        generation.fail(Cancelled("the master was stopped"))
        assert generation.ended.wait(LIMIT_S)
        server.ended_in_order()
        assert record.read_bytes() == written
    service.script = lambda generation: (generation.take_up(), generation.say(*WORDS), generation.finish())
    with connect(keep()) as http:
        assert http.get(path).json()["usage"]["completion_tokens"] == len(WORDS)
        wait_until_forgotten(http, folder)


def test_what_got_on_is_not_taken_back(keep, service, folder):
    asked(keep, service)
    (record,) = left(folder)
    server, generation = taken_up(keep, service, record)
    generation.say(WORDS[0])
    wait_until(lambda: record.read_bytes().endswith(b" %d\n" % WORDS[0]))
    written = record.read_bytes()
    server.close()
    server.ended_in_order()
    assert record.read_bytes() == written


def test_servers_that_fail_count(keep, service, folder):
    """Those between them that end in order do not."""
    asked(keep, service)
    (record,) = left(folder)
    for number in range(GUILTY):
        server, _ = taken_up(keep, service, record)
        server.close()
        server.ended_in_order()
        server, generation = taken_up(keep, service, record)
        generation.fail(MasterFailed("the control thread failed"))
        server.close()
        assert record.read_bytes().count(b"taken up") == number + 1
    assert keep().recovered == 0
    assert [path.suffix for path in folder.iterdir()] == [".aside"]
