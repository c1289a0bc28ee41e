"""A master with --journal is killed in the middle of answers, and the next one goes on with them."""

import contextlib
import json
import signal
import stat
import subprocess
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.process.command import COMMAND, wait_for
from tests.process.faulty import Fault
from tests.process.serving.serving import START_S, Serving
from tpiedge.api.records import RECORD_VERSION

KEY, OTHER_KEY = "key-of-ann", "key-of-bob"
OPTIONS = ("--journal", "--precision", "q4", "--api-key", KEY, "--api-key", OTHER_KEY)
PROMPT = "Once upon a time there was a little fox"
BODY = {
    "model": "demo",
    "prompt": PROMPT,
    "max_tokens": 900,
    "temperature": 0.8,
    "seed": 7,
    "ignore_eos": True,
}
MESSAGES = [{"role": "user", "content": "Tell me a story"}]
BROKEN = (httpx.RemoteProtocolError, httpx.ReadError)
#: Lines of a record when an answer is well under way.
UNDER_WAY = 20
#: Tokens of an answer and its prompt, far beyond that and far before the end; and later ones.
HALF_WAY, LATER = 400, 700
#: Generous, but less than the minute after which a step that does not end is given up, and everything begins anew.
GIVES_WAY_S = 40.0


@pytest.fixture(scope="module")
def started(clusters) -> Serving:
    cluster = clusters(*OPTIONS)
    cluster.start_master()
    cluster.wait_ready(1)
    return cluster


@pytest.fixture
def cluster(started: Serving) -> Serving:
    """Nothing is recorded: what another test's client never said that it has read is deleted."""
    with client(started) as http:
        for record in records(started):
            name = record.stem.partition("-")[2]
            where = "/v1/chat/completions" if name.startswith("chatcmpl") else "/v1/completions"
            assert http.delete(f"{where}/{name}").json()["deleted"]
        wait_until_nothing_is_recorded(started, http)
    return started


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Fault]:
    """Once it has begun, answers stand still at a length."""
    fault = Fault("held", tmp_path / "held")
    yield fault
    fault.end()


@pytest.fixture(scope="module")
def expected(started: Serving) -> str:
    """The undisturbed answer."""
    with client(started) as http:
        answer = http.post("/v1/completions", json=BODY)
        text: str = answer.json()["choices"][0]["text"]
        assert http.get("/health").status_code == httpx.codes.OK  # or it would stay recorded
        name = answer.headers["x-request-id"]
        wait_for(lambda: not any(name in record.name for record in records(started)), START_S)
    assert len(text) > 500
    return text


def client(cluster: Serving, key: str = KEY) -> httpx.Client:
    return httpx.Client(
        base_url=cluster.url, headers={"Authorization": f"Bearer {key}"}, trust_env=False, timeout=START_S
    )


def records(cluster: Serving) -> list[Path]:
    return sorted((cluster.state / "master" / "answers").iterdir())


def wait_for_record(cluster: Serving, lines: int = 0) -> int:
    """Until the one answer is well under way, beyond so many lines; returns how many there are."""
    wait_for(lambda: recorded_lines(cluster) > lines + UNDER_WAY, START_S)
    return recorded_lines(cluster)


def recorded_lines(cluster: Serving) -> int:
    with contextlib.suppress(FileNotFoundError):  # it was delivered just now
        return max((path.read_bytes().count(b"\n") for path in records(cluster)), default=0)
    return 0


def kill(cluster: Serving) -> None:
    cluster.master.popen.kill()
    assert cluster.master.wait() == -signal.SIGKILL


def wait_until_nothing_is_recorded(cluster: Serving, http: httpx.Client) -> None:
    """The next request of a client shows that it has read the answer before, which is kept until then."""
    assert http.get("/health").status_code == httpx.codes.OK
    wait_for(lambda: not records(cluster), START_S)


def kill_during_whole_answer(
    cluster: Serving, http: httpx.Client, where: str = "/v1/completions", body: Mapping[str, object] = BODY
) -> str:
    """Asks for an answer that is not streamed, and kills the master once it is well under way. Returns its path.

    What computes it crawls, so that it lasts until its head is there."""
    named = threading.Event()
    with ThreadPoolExecutor(1) as threads, cluster.crawling():
        path = threads.submit(whole_that_breaks, http, where, body, named)
        wait_for_record(cluster)
        assert named.wait(START_S)
        kill(cluster)
        return path.result()


def whole_that_breaks(
    http: httpx.Client, where: str, body: Mapping[str, object], named: threading.Event
) -> str:
    """Asks for an answer that is not streamed; returns its path, once the connection has broken."""
    with http.stream("POST", where, json=body) as answer:
        path = f"{where}/{answer.headers['x-request-id']}"
        named.set()
        with pytest.raises(BROKEN):
            answer.read()
    return path


class Stream:
    """The events of an answer, over several connections."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.text = ""
        self.done = False

    def begin(self, cluster: Serving, http: httpx.Client, end_master: Callable[[], object]) -> str:
        """Asks, and ends the master once the answer is well under way. Returns the path of the rest."""
        asked = http.stream("POST", "/v1/completions", json=BODY | {"stream": True})
        with cluster.crawling(), asked as answer:
            path = f"/v1/completions/{answer.headers['x-request-id']}"
            events = self.read(answer)
            while next(events) < UNDER_WAY:
                pass
            end_master()
            with contextlib.suppress(*BROKEN):
                for _ in events:
                    pass
        assert not self.done
        return path

    @property
    def headers(self) -> dict[str, str]:
        """For what comes after the last event."""
        return {"Last-Event-ID": str(self.ids[-1])}

    def go_on(self, http: httpx.Client, path: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Reads the rest to its end."""
        with http.stream("GET", path, headers=self.headers) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            meanwhile()
            for _ in self.read(answer):
                pass
        assert self.done
        assert self.ids == list(range(1, len(self.ids) + 1))

    def read(self, answer: httpx.Response) -> Iterator[int]:
        for line in answer.iter_lines():
            if line.startswith("id: "):
                self.ids.append(int(line.removeprefix("id: ")))
            if line == "data: [DONE]":
                self.done = True
            elif line.startswith("data: "):
                value = json.loads(line.removeprefix("data: "))
                assert "choices" in value, value
                self.text += "".join(choice["text"] for choice in value["choices"])
                yield self.ids[-1]


@pytest.mark.fault(
    "P7", "killed with --journal: the next master goes on, and the stream is resumed byte for byte"
)
def test_a_stream_goes_on_after_its_last_event(cluster: Serving, expected: str):
    stream = Stream()
    with client(cluster) as http, client(cluster, OTHER_KEY) as other:
        path = stream.begin(cluster, http, lambda: kill(cluster))
        (record,) = records(cluster)
        assert stat.S_IMODE(record.stat().st_mode) == 0o600
        assert stat.S_IMODE(record.parent.stat().st_mode) == 0o700
        assert KEY not in record.read_text()
        cluster.start_master()
        wait_for(lambda: "going on with 1 answer of the master before" in cluster.master.log, START_S)
        refused = [
            other.get(path, headers=stream.headers),
            http.get(path.replace("/v1/", "/v1/chat/"), headers=stream.headers),
            http.get("/v1/completions/cmpl-0", headers=stream.headers),
        ]
        assert [one.status_code for one in refused] == [404] * 3
        assert len({one.text for one in refused}) == 1
        stream.go_on(http, path)
        assert stream.text == expected
        wait_until_nothing_is_recorded(cluster, http)
        assert http.get(path, headers=stream.headers).status_code == 404


@pytest.mark.fault(
    "P7", "killed with --journal: an answer that is not streamed is finished, and collected by its id"
)
def test_a_whole_answer_is_collected(cluster: Serving, expected: str):
    with client(cluster) as http:
        path = kill_during_whole_answer(cluster, http)
        cluster.start_master()
        collected = http.get(path).json()
        assert collected["choices"][0]["text"] == expected
        assert collected["usage"]["completion_tokens"] == BODY["max_tokens"]
        wait_until_nothing_is_recorded(cluster, http)


@pytest.mark.fault(
    "P7", "killed with --journal: who asks the next master comes before answers that nobody waits for"
)
def test_what_nobody_waits_for_gives_way(clusters, expected: str, held: Fault):
    """One request at a time is computed: the answer of the master before gives its place back, and goes on later."""
    cluster = clusters(*OPTIONS, "--parallel", 1, program=held.program)
    cluster.start_master()
    cluster.wait_ready(1)
    short = BODY | {"max_tokens": 5}
    with client(cluster) as http, ThreadPoolExecutor(1) as threads:
        path = kill_during_whole_answer(cluster, http)
        lines = recorded_lines(cluster)
        held.begin(HALF_WAY)
        cluster.start_master()
        wait_for(lambda: held.met, START_S)
        assert recorded_lines(cluster) > lines
        asked = threads.submit(http.post, "/v1/completions", json=short)
        cluster.wait_until(lambda status: status["queued"] == 1)
        held.begin(LATER)  # where the answer stands still, if it has not given way
        assert asked.result(GIVES_WAY_S).json()["usage"]["completion_tokens"] == 5
        assert recorded_lines(cluster) < BODY["max_tokens"]
        held.end()
        assert http.get(path).json()["choices"][0]["text"] == expected


@pytest.mark.fault("P7", "killed with --journal: `tpiedge chat` connects again by itself")
def test_a_chat_connects_again_by_itself(cluster: Serving):
    command = [COMMAND, "chat", "--url", cluster.url, "--api-key", KEY, "--prompt", "Tell me a story"]
    asked = [*command, "--seed", "3", "--max-tokens", "900"]
    undisturbed = subprocess.run(asked, check=True, capture_output=True, timeout=START_S).stdout
    with (
        cluster.crawling(),  # or the answer may be whole before the master is killed
        subprocess.Popen(asked, bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as chat,
    ):
        begun = chat.stdout.read(1)  # who has heard nothing knows no answer to come again for
        kill(cluster)
        cluster.start_master()
        rest, notes = chat.communicate(timeout=START_S)
    assert chat.returncode == 0, notes
    assert begun + rest == undisturbed
    assert b"[the connection broke; trying again for" in notes
    assert b"[connected again, the answer goes on]" in notes


@pytest.mark.fault(
    "P7", "killed with --journal together with its worker: both come back, and the answer goes on"
)
def test_an_answer_waits_for_the_worker_that_it_needs(clusters, expected: str):
    """The weights are shared by two machines before, and by two others after: the bits are the same."""
    cluster = clusters(*OPTIONS, "--min-workers", 1)
    cluster.start_master()
    ann = cluster.start_worker("ann")
    cluster.wait_ready(2)
    stream = Stream()
    with client(cluster) as http:
        path = stream.begin(cluster, http, lambda: kill(cluster))
        ann.process.end()
        cluster.start_master()
        stream.go_on(http, path, lambda: cluster.start_worker("bob"))
    assert stream.text == expected


@pytest.mark.fault(
    "P8",
    "the client's connection is cut with --journal: the answer goes on for a minute, and a GET has the rest",
)
def test_a_client_that_lost_its_connection_has_the_rest(cluster: Serving, expected: str):
    stream = Stream()
    with client(cluster) as http:
        asked = http.stream("POST", "/v1/completions", json=BODY | {"stream": True})
        with cluster.crawling(), asked as answer:
            path = f"/v1/completions/{answer.headers['x-request-id']}"
            for number in stream.read(answer):
                if number == UNDER_WAY:
                    break
        wait_for_record(cluster, UNDER_WAY)
        stream.go_on(http, path)
        assert stream.text == expected
        asked = http.stream("POST", "/v1/completions", json=BODY | {"stream": True})
        with cluster.crawling(), asked as answer:  # or all of it may have been sent before
            path = f"/v1/completions/{answer.headers['x-request-id']}"
            assert http.delete(path).json()["deleted"]
        wait_until_nothing_is_recorded(cluster, http)
        assert http.get(path).status_code == 404


@pytest.mark.fault(
    "P7", "killed with --journal after the answer's end, which its client has not read: a GET has the rest"
)
@pytest.mark.parametrize("killed", [False, True], ids=["", "killed"])
def test_an_answer_that_ended_before_it_was_read_is_whole(cluster: Serving, expected: str, killed: bool):
    stream = Stream()
    with client(cluster) as http:
        with http.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as answer:
            path = f"/v1/completions/{answer.headers['x-request-id']}"
            for number in stream.read(answer):
                if number == UNDER_WAY:
                    break
            wait_for(lambda: any(b',"ended",' in one.read_bytes() for one in records(cluster)), START_S)
        if killed:
            kill(cluster)
            cluster.start_master()
    with client(cluster) as http:
        stream.go_on(http, path)
        assert stream.text == expected
        wait_until_nothing_is_recorded(cluster, http)


@pytest.mark.fault("P7", "asked to end with --journal: what it does not finish, the next master does")
def test_what_a_master_does_not_finish_in_time_the_next_one_does(clusters, expected: str):
    cluster = clusters(*OPTIONS, "--drain", 0)
    cluster.start_master()
    cluster.wait_ready(1)
    stream = Stream()
    with client(cluster) as http:
        path = stream.begin(cluster, http, cluster.master.popen.terminate)
        assert cluster.master.wait() == 0
        cluster.start_master()
        stream.go_on(http, path)
    assert stream.text == expected


def test_a_master_that_cannot_begin_leaves_what_it_found_to_the_next_one(
    cluster: Serving, expected: str, tmp_path: Path
):
    """It had read the records already, and accepted the requests."""
    stream = Stream()
    with client(cluster) as http:
        path = stream.begin(cluster, http, lambda: kill(cluster))
        left = records(cluster)
        cluster.options = (*OPTIONS, "--token-file", tmp_path / "none" / "token")
        assert cluster.start_master(wait=False).wait() == 2
        assert "cannot write the token" in cluster.master.log
        assert records(cluster) == left
        cluster.options = OPTIONS
        cluster.start_master()
        stream.go_on(http, path)
    assert stream.text == expected


@pytest.mark.fault("P7", "asked twice to end with --journal: what it does not finish, the next master does")
def test_what_a_master_does_not_wait_for_any_more_the_next_one_finishes(clusters, expected: str):
    cluster = clusters(*OPTIONS, "--drain", 600)
    cluster.start_master()
    cluster.wait_ready(1)
    stream = Stream()

    def end_twice() -> None:
        cluster.master.popen.terminate()
        wait_for(lambda: "finishing what is under way" in cluster.master.log, START_S)
        cluster.master.popen.terminate()

    with client(cluster) as http:
        path = stream.begin(cluster, http, end_twice)
        assert cluster.master.wait() == 0
        cluster.start_master()
        stream.go_on(http, path)
    assert stream.text == expected


def test_a_record_of_another_version_is_refused(clusters):
    cluster = clusters("--journal")
    folder = cluster.state / "master" / "answers"
    folder.mkdir(mode=0o700)
    record = folder / "000000000001-cmpl-1.answer"
    record.touch(mode=0o600)
    head = b'{"version":%d}' % (RECORD_VERSION + 1)
    record.write_bytes(b"%08x %b\n" % (zlib.crc32(head), head))
    assert cluster.start_master(wait=False).wait() == 2
    (line,) = [line for line in cluster.master.log.splitlines() if str(record) in line]
    versions = f"is a record of version {RECORD_VERSION + 1}, this tpiedge reads version {RECORD_VERSION}"
    assert f"{versions}: start the tpiedge that wrote it" in line
    assert "Traceback" not in cluster.master.log
    cluster.options = ()
    cluster.start_master()
    words = f"left in {folder}: 1 answer; --journal goes on with them"
    wait_for(lambda: words in cluster.master.log, START_S)
    assert record.exists()
