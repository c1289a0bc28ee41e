"""A page of somebody else in a real browser, beside a master that needs no key: it can neither use nor cancel anything,
nor read what others got."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.process.serving.middleman import PAGE, Exchange, Middleman
from tests.process.serving.serving import Serving

if TYPE_CHECKING:
    from tests.browsing.browser import Browser

_HTML = Path(__file__).with_name("hostile_page.html")
_ATTACK_S = 200.0
#: Browsers know themselves that it leads to this computer, and take it for another site.
_EVIL = "evil.localhost"
#: It takes longer than a page attacks.
_BODY = {"model": "demo", "prompt": "ba zu", "max_tokens": 25_000, "ignore_eos": True, "stream": True}
#: Each must have come from the browser, or the test shows nothing.
_TRIED = {
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/tokenize"),
    ("POST", "/admin/nodes/drain"),
    ("OPTIONS", "/v1/completions"),
    ("GET", "/v1/models"),
    ("GET", "/metrics"),
    ("GET", "/admin/nodes"),
}


@pytest.fixture(scope="module")
def cluster(text_model: Path, clusters: Callable[..., Serving]) -> Serving:
    """A master alone, whose answers can be collected and deleted by their ids."""
    made = clusters("--journal", "--alias", "demo", model=text_model)
    made.start_master()
    made.wait_ready(1)
    return made


@contextlib.contextmanager
def _answer_under_way(cluster: Serving) -> Iterator[str]:
    """Its id, which a page would have to guess."""
    asked = httpx.stream("POST", f"{cluster.url}/v1/completions", json=_BODY, timeout=60.0, trust_env=False)
    with cluster.crawling(), asked as stream:
        first = next(line for line in stream.iter_lines() if line.startswith("data: "))
        yield json.loads(first.removeprefix("data: "))["id"]


def _ended(cluster: Serving) -> dict[str, int]:
    """Requests, by how they ended."""
    totals = cluster.status()["totals"]
    return {name: totals[name] for name in ("finished", "failed", "cancelled", "refused")}


def _attacked(
    browser: "Browser", cluster: Serving, answer: str, host: str, *, rebound: bool
) -> tuple[list, list[Exchange]]:
    """What the page of `host` got, and what the master was asked for it. `rebound`: its name has come to lead to the
    master meanwhile, so that both have one origin."""
    html = _HTML.read_text().replace("%ANSWER%", f"/v1/completions/{answer}")
    with Middleman(cluster.port + 4, "") as master:
        base = "" if rebound else f"http://127.0.0.1:{master.port}"
        with Middleman(cluster.port + 4, html.replace("%BASE%", base)) as evil:
            browser.driver.get(f"http://{host}:{evil.port}{PAGE}")
            browser.wait(lambda: browser.driver.title == "done", _ATTACK_S)
            results = browser.run("return window.results")
            browser.driver.get("about:blank")
            browser.complaints()  # of all that the page was refused
            return results, (evil if rebound else master).seen


@pytest.mark.fault("H12", "no client is told the path of a model; who knows it may name the model by it")
def test_the_path_of_the_model_is_told_to_nobody(cluster: Serving) -> None:
    path = str(cluster.model)
    with httpx.Client(base_url=cluster.url, trust_env=False, timeout=30.0) as http:
        for asked in ("/v1/models", f"/v1/models/{path}", "/metrics", "/api/tags", "/api/ps"):
            answer = http.get(asked)
            assert (answer.status_code, path in answer.text) == (200, False), asked
        name = http.get("/v1/models").json()["data"][0]["id"]
        for model in (path, name):
            body = _BODY | {"model": model, "max_tokens": 1, "stream": False}
            assert http.post("/v1/completions", json=body).json()["model"] == name
        assert path not in http.post("/v1/completions", json=_BODY | {"model": "other"}).text
    assert path not in json.dumps(cluster.status())


@pytest.mark.fault(
    "H5", "a page in a real browser can neither use nor cancel nor read anything, whatever it sends"
)
@pytest.mark.parametrize(
    ("host", "rebound"),
    [(_EVIL, False), ("localhost", False), (_EVIL, True)],
    ids=["another site", "another port", "its name leads to the master"],
)
def test_a_hostile_page_does_nothing(cluster: Serving, browser: "Browser", host: str, rebound: bool) -> None:
    before = _ended(cluster)
    with _answer_under_way(cluster) as answer:
        results, seen = _attacked(browser, cluster, answer, host, rebound=rebound)
        status = cluster.status()
        assert (status["running"], status["queued"], _ended(cluster)) == (1, 0, before)
        deleted = httpx.delete(f"{cluster.url}/v1/completions/{answer}", trust_env=False, timeout=30.0)
        assert deleted.json()["deleted"] is True  # by whoever may: it was still there
    cluster.wait_until(lambda now: now["totals"]["cancelled"] == before["cancelled"] + 1)

    asked = {(one.method, one.path) for one in seen}
    tried = {*_TRIED, ("GET", f"/v1/completions/{answer}")}
    tried.add(("DELETE" if rebound else "OPTIONS", f"/v1/completions/{answer}"))
    assert tried - asked <= ({("OPTIONS", "/v1/completions")} if rebound else set())
    assert {one.status for one in seen} == {403}, [one for one in seen if one.status != 403]
    readable = [text for _, text in results if text[:3].isdigit()]
    assert all(text.startswith("403 ") for text in readable), readable
    assert bool(readable) == rebound  # of another origin not even the refusal can be read
    assert not [name for name, text in results if text == "opened"]
