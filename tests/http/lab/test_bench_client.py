"""The client of `tpiedge bench serve` before the real server: how many ask at a time, and what becomes of each."""

import threading
import time

import pytest

from tpiedge.api.limits import Limits
from tpiedge.clock import MonotonicClock
from tpiedge.errors import PeerError, UserError
from tpiedge.lab.bench import serve_run
from tpiedge.lab.bench.serve_client import MeasuredServer, ServerAddress, Streams

PROMPTS = serve_run.RandomPrompts(2048, 0, 0)


@pytest.fixture
def address(serve):
    return ServerAddress.of_url(serve(limits=Limits(ping_s=0.2)).url, None)


@pytest.fixture
def streams(address):
    with Streams(MeasuredServer.at(address), MonotonicClock()) as streams:
        yield streams


class Script:
    """Answers every request at once, and knows the most that were under way. `held`: until as many are there."""

    def __init__(self, held: int = 1) -> None:
        self.most = 0
        self.requests = []
        self._held = held
        self._waiting = []
        self._lock = threading.Lock()

    def __call__(self, generation) -> None:
        with self._lock:
            self.requests.append(generation.request)
            self._waiting.append(generation)
            self.most = max(self.most, len(self._waiting))
            if len(self._waiting) < self._held:
                return
            ready, self._waiting = self._waiting, []
        for one in ready:
            one.say(*range(300, 300 + one.request.max_tokens))
            one.finish()


def prompts(count, tokens=8):
    return [PROMPTS.of(tokens) for _ in range(count)]


def test_each_client_sends_its_next_request_after_an_answer(service, streams):
    service.script = script = Script(held=2)
    sent = prompts(6)
    answers = serve_run.by_clients(streams, sent, 5, 2)
    assert [(answer.error, len(answer.token_s), answer.prompt_tokens) for answer in answers] == [
        ("", 5, 8)
    ] * 6
    assert script.most == 2
    assert {request.prompt_ids for request in script.requests} == set(sent)
    assert all(request.ignore_eos and request.sampling.temperature == 0 for request in script.requests)
    assert all(answer.sent_s < answer.token_s[0] <= answer.ended_s for answer in answers)
    assert streams.running == 0


def test_refused_requests_are_errors_and_the_others_go_on(service, streams):
    refused = threading.Event()

    def script(generation):
        if not refused.is_set():
            refused.set()
            raise UserError("not this one")
        generation.say(300)
        generation.finish()

    service.script = script
    answers = serve_run.by_clients(streams, prompts(4), 1, 1)
    assert [bool(answer.error) for answer in answers] == [True, False, False, False]
    assert "not this one" in answers[0].error


def test_requests_fail_when_no_server_listens(serve):
    server = serve()
    address = ServerAddress.of_url(server.url, None)
    measured = MeasuredServer.at(address)
    server.close()
    with Streams(measured, MonotonicClock()) as streams:
        answers = serve_run.by_clients(streams, prompts(3), 1, 2)
        assert [answer.error for answer in answers] == ["no server answers: Connection refused"] * 3
        with pytest.raises(PeerError, match="no server answers"):
            serve_run.ask_alone(streams, PROMPTS.of(8))
    with pytest.raises(PeerError, match=r"no server answers at 127.0.0.1:\d+/v1/models"):
        MeasuredServer.at(address)


def test_cancelled_stream_cancels_its_generation(service, streams):
    service.script = lambda generation: generation.say(300)
    exchange = streams.start(PROMPTS.of(8), 100)
    while not exchange.events:
        streams.wait(5.0)
    streams.cancel(exchange)
    assert service.generations.get(timeout=20).cancelled.wait(20)
    assert exchange.answer().error == "the server ended the answer early"
    assert streams.running == 0


def test_long_prompt_is_measured_beside_other_requests(service, streams):
    """The others answer all the time; the long prompt takes a while."""
    others = []

    def talk(generation):
        for token in range(300, 300 + generation.request.max_tokens):
            if generation.cancelled.wait(0.02):
                return
            generation.say(token)
        generation.finish()

    def script(generation):
        if generation.request.max_tokens == 1:
            beside = len(generation.request.prompt_ids) == 64 and len(others) == 3
            threading.Timer(
                0.1 if beside else 0.02, lambda: (generation.say(300), generation.finish())
            ).start()
            return
        others.append(threading.Thread(target=talk, args=(generation,)))
        others[-1].start()

    service.script = script
    endless = (PROMPTS.of(8) for _ in iter(int, 1))
    wanted = serve_run.LongPrompt(
        PROMPTS.of(64), PROMPTS.of(64), endless, answer_tokens=200, settled_tokens=10
    )
    found = serve_run.measure_long_prompt(streams, wanted)
    for thread in others:
        thread.join(20)
    assert len(others) >= 3  # one that ends before the long prompt is read is followed by another one
    assert found.normal_s["p50"] > 0.004
    assert found.beside_s["p50"] > 0
    assert found.beside_tokens_per_s <= 64 / 0.1
    assert found.alone_tokens_per_s <= 64 / 0.02


def wish(**changes):
    values = {
        "loads": (serve_run.ServeLoad(1), serve_run.ServeLoad(2), serve_run.ServeLoad(None, 100.0)),
        "requests": 3,
        "prompt_tokens": 8,
        "tokens": 4,
        "alone_tokens": None,
        "long_prompt": None,
        "shared": 4,
        "prompts": (),
        "repeats": 2,
        "seed": 0,
    }
    return serve_run.ServeWish(**(values | changes))


def test_bench_record_covers_all_loads_and_repeats(service, address):
    service.script = script = Script()
    said = []
    started = time.monotonic()
    record = serve_run.measure_server(MeasuredServer.at(address), 2048, wish(), said.append)
    assert time.monotonic() - started < 20
    assert [(load["concurrency"], load["rate_per_s"]) for load in record["loads"]] == [
        *((1, None), (2, None), (None, 100.0))
    ]
    assert all((load["requests"], load["errors"]) == (6, 0) for load in record["loads"])
    assert record["prefill"]["prompt_tokens"] == 508, "the context has 512"
    loads = [request.prompt_ids for request in script.requests if len(request.prompt_ids) == 8]
    assert len(set(loads)) == len(loads) == 18
    assert len({prompt[:4] for prompt in loads}) == 1
    assert said[0] == "repeat 1 of 2"


def test_server_address_parses_urls_and_hides_the_key():
    assert ServerAddress.of_url("http://host:81/v1", "key") == ServerAddress("host", 81, "key")
    assert ServerAddress.of_url("http://[::1]", None).headers["Host"] == "[::1]:80"
    assert ServerAddress("h", 1, "abc").headers["Authorization"] == "Bearer abc"
    assert "abc" not in repr(ServerAddress("h", 1, "abc"))
    with pytest.raises(UserError, match="API key"):
        ServerAddress.of_url("http://host", "käse")
