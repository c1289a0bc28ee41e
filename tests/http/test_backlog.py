"""A resumed answer of thousands of events: other tasks run while it is read."""

import asyncio
from dataclasses import replace

import pytest

from tests.http.conftest import SECRET
from tests.http.kept import KeptAnswers
from tests.http.test_resuming import CHAT, LIMIT_S, PACK, TEXT, Left, events_in, wait_until
from tpiedge.api.records import RecordFolder
from tpiedge.api.transcript import Transcript

TOKENS = 3000
AT_ONCE = 16
FORMS = {
    "chat": CHAT,
    "logprobs": replace(TEXT, logprobs=5),
    "stops": replace(CHAT, stops=("never said", "nor this")),
    "message": replace(CHAT, format="message"),
    "response": replace(CHAT, format="response"),
}


class Work:
    """Counts the work for an answer in one iteration of the event loop."""

    def __init__(self, monkeypatch):
        self.fed = self.most = self.others = self.before_head = 0
        self.body = b""
        self.heads = []
        feed = Transcript.feed

        def fed(transcript, event):
            self.fed += 1
            return feed(transcript, event)

        monkeypatch.setattr(Transcript, "feed", fed)

    async def watch(self):
        """Counts iterations in which other tasks run."""
        while True:
            before = self.fed
            await asyncio.sleep(0)
            self.others += 1
            self.most = max(self.most, self.fed - before)

    async def get(self, api, path, last):
        async def receive():
            await asyncio.Event().wait()

        async def send(message):
            if message["type"] == "http.response.start":
                self.heads.append(self.fed)
            self.body += message.get("body", b"")

        headers = [(b"host", b"localhost")] + ([(b"last-event-id", b"%d" % last)] if last else [])
        scope = {"type": "http", "method": "GET", "path": path, "headers": headers, "query_string": b""}
        watching = asyncio.create_task(self.watch())
        await api({**scope, "state": {}}, receive, send)
        watching.cancel()


@pytest.fixture
def begun(tmp_path, service):
    """An API that has the answer of a server before, with all its tokens, and the answer's path."""
    kept = []

    def begin(reply, limits=None):
        ids = [500 + number % 700 for number in range(TOKENS)]
        path = Left(tmp_path / "answers", service)(reply, ids, TOKENS)
        kept.append(KeptAnswers(RecordFolder(tmp_path / "answers", PACK), service, LIMIT_S))
        kept[0].recover_all()
        answer = kept[0].find(path.rpartition("/")[2])
        wait_until(lambda: answer.over)
        return kept[0].api(SECRET, limits), path

    yield begin
    kept[0].close(LIMIT_S)


@pytest.mark.fault(
    "H9", "the rest of a long answer is asked for: its head and a ping come first, and others go on"
)
@pytest.mark.parametrize("form", FORMS)
def test_skipping_a_long_resumed_answer_blocks_no_other_task(begun, monkeypatch, form):
    monkeypatch.setattr("tpiedge.api.answering._OPEN_S", 0.0)
    api, path = begun(FORMS[form])
    work = Work(monkeypatch)
    asyncio.run(work.get(api, path, TOKENS // 2))
    assert work.fed >= TOKENS
    assert work.most <= AT_ONCE
    assert work.others >= TOKENS // AT_ONCE
    assert work.heads[0] <= AT_ONCE
    assert b": ping" in work.body.partition(b"id: ")[0] or b"event: ping" in work.body.partition(b"id: ")[0]
    numbers = [number for number, _ in events_in(work.body.decode().splitlines()) if number is not None]
    assert numbers == list(range(TOKENS // 2 + 1, numbers[-1] + 1))
