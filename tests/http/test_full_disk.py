"""A disk that was full for a while: what could not be recorded is, once there is room, and nothing else is promised."""

import errno
import os
import threading

import httpx
import pytest

from tests.http.kept import KeptAnswers
from tests.http.test_resuming import (
    BODY,
    LIMIT_S,
    PACK,
    WHOLE,
    WORDS,
    accepted_as,
    connect,
    events_of,
    left,
    wait_until,
)
from tpiedge.api.asked import Asked, Choice
from tpiedge.api.record_folder import RecordFolder
from tpiedge.api.records import read_record
from tpiedge.wire.requests import GenerationRequest

STREAM = BODY | {"stream": True}


class Disk:
    """Of the records alone. With `room` for so many bytes more; None where that is no matter."""

    def __init__(self, folder):
        self.room = None
        self._folder = folder
        self._write = os.write

    def write(self, fd, data):
        if self.room is None or not os.readlink(f"/proc/self/fd/{fd}").startswith(str(self._folder)):
            return self._write(fd, data)
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self._write(fd, bytes(data)[: self.room])
        self.room -= written
        return written


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "answers"


@pytest.fixture
def disk(folder, monkeypatch):
    found = Disk(folder)
    monkeypatch.setattr("tpiedge.api.record_file.os.write", found.write)
    return found


@pytest.fixture
def keep(serve, folder):
    return lambda **options: serve(records=RecordFolder(folder, PACK), **options)


def told(folder):
    """The tokens that a record says; none where there is no record."""
    found = [read_record(path.read_bytes()) for path in left(folder)]
    return [event.token for record in found for _, event in record.said]


@pytest.mark.fault(
    "F6", "the state disk is full for a while: the record is made anew, and the next master goes on"
)
@pytest.mark.parametrize("room", [0, 3])
def test_a_record_is_made_anew_once_there_is_room(keep, service, folder, disk, room):
    """In the middle of an answer, which a client reads."""
    server = keep()
    with connect(server) as http, http.stream("POST", "/v1/completions", json=STREAM) as answer:
        assert answer.headers["x-resumable"] == "yes"
        path = f"/v1/completions/{answer.headers['x-request-id']}"
        generation = service.generations.get(timeout=LIMIT_S)
        events, found = events_of(answer), []
        generation.say(WORDS[0])
        found.append(next(events))
        disk.room = room
        generation.say(WORDS[1])
        found.append(next(events))
        assert not left(folder), "what it says would not be all"
        disk.room = None
        wait_until(lambda: told(folder) == list(WORDS))
        generation.say(WORDS[0])
        found.append(next(events))
        assert told(folder) == [*WORDS, WORDS[0]]
        threading.Thread(target=server.close).start()
        with pytest.raises(httpx.RemoteProtocolError):
            found.extend(events)
    server.close()
    service.script = lambda generation: generation.finish()
    with connect(keep()) as http, http.stream("GET", path, headers={"Last-Event-ID": "3"}) as answer:
        assert answer.headers["x-resumable"] == "yes"
        found += events_of(answer)
    assert [number for number, _ in found] == list(range(1, len(found) + 1))
    assert found[-1][1] == "[DONE]"


@pytest.mark.parametrize("stream", [True, False])
def test_what_is_not_recorded_is_not_promised(keep, service, folder, disk, stream):
    """And its client is told that the server ends, where it would wait for another one in vain."""
    disk.room = 0
    server = keep()
    with (
        connect(server) as http,
        http.stream("POST", "/v1/completions", json=BODY | {"stream": stream}) as answer,
    ):
        assert "x-resumable" not in answer.headers
        generation = service.generations.get(timeout=LIMIT_S)
        generation.say(*WORDS)
        wait_until(lambda: generation.said == len(WORDS))
        threading.Thread(target=server.close).start()
        lines = []
        try:
            lines.extend(answer.iter_lines())
        except httpx.RemoteProtocolError:
            assert stream
        assert "the server is shutting down" in "".join(lines)
    server.close()
    disk.room = None
    assert not left(folder)


def test_it_is_promised_once_it_is_true(keep, service, folder, disk):
    disk.room = 0
    with connect(keep()) as http:
        with http.stream("POST", "/v1/completions", json=STREAM) as answer:
            assert "x-resumable" not in answer.headers
            path = f"/v1/completions/{answer.headers['x-request-id']}"
            service.generations.get(timeout=LIMIT_S).say(WORDS[0])
            next(events_of(answer))
        disk.room = None
        wait_until(lambda: told(folder) == [WORDS[0]])
        with http.stream("GET", path, headers={"Last-Event-ID": "0"}) as answer:
            assert answer.headers["x-resumable"] == "yes"


def test_an_answer_that_ended_while_the_disk_was_full_is_recorded_whole(keep, service, folder, disk):
    disk.room = 0
    service.script = lambda generation: (generation.say(*WORDS), generation.finish())
    with connect(keep()) as http:
        answer = http.post("/v1/completions", json=BODY)
        assert answer.json()["usage"]["completion_tokens"] == len(WORDS)
        assert not left(folder)
        disk.room = None
        wait_until(lambda: left(folder))
        (path,) = left(folder)
        record = read_record(path.read_bytes())
        assert [type(event).__name__ for _, event in record.said] == ["Token", "Token", "Finished"]
        http.get("/health")
        wait_until(lambda: not left(folder))


@pytest.mark.parametrize("said", [0, 1])
def test_who_took_it_up_is_recorded_anew(folder, service, disk, said):
    """A request that may be what ends masters does so whether the disk was full or not."""
    accepted = accepted_as(GenerationRequest("cmpl-1", (1,), 9), WHOLE)
    file = RecordFolder(folder, PACK).begin(accepted)
    file.take_up()
    file.keep()
    kept = KeptAnswers(RecordFolder(folder, PACK), service, LIMIT_S)
    disk.room = 0
    assert kept.recover_all() == 1
    generation = service.generations.get(timeout=LIMIT_S)
    generation.take_up()
    generation.say(*WORDS[:said])
    wait_until(lambda: not left(folder))
    answer = kept.find("cmpl-1")
    wait_until(lambda: len(answer.events) == said)
    disk.room = None
    assert answer.record_again()
    (path,) = left(folder)
    assert read_record(path.read_bytes()).taken_up == (0 if said else 2)
    kept.close()
    kept.ended_in_order()
    kept.join(LIMIT_S)
    assert read_record(path.read_bytes()).taken_up == (0 if said else 1)


def test_the_smallest_comes_first_and_none_is_tried_in_vain(folder, service, disk):
    """Where there is room for one, the others are not even written."""
    kept = KeptAnswers(RecordFolder(folder, PACK), service, LIMIT_S)
    disk.room = 0
    generations = []
    for number in range(3):
        request = GenerationRequest(f"cmpl-{number}", (1,) * (900, 5, 600)[number], 9)
        kept.ask(Asked((Choice(request),), WHOLE, ()), request.id, "ann")
        generations.append(service.generations.get_nowait())
    disk.room = 1500
    kept.sweep()
    wait_until(lambda: left(folder) and not kept._recording)
    (path,) = left(folder)
    assert "cmpl-1" in path.name
    disk.room = None
    kept.sweep()
    wait_until(lambda: len(left(folder)) == 3)
    kept.close()
    kept.join(LIMIT_S)
