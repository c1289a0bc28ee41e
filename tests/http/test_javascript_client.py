"""OpenAI's client for JavaScript in a real Node: what it hears of answers, refusals, and answers that break off."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.http.conftest import answers
from tests.unit.page.test_page_modules import node_version
from tpiedge.api.limits import Limits
from tpiedge.errors import PeerLost
from tpiedge.master.request_queue import QueueFull

_OLDEST = 20
_VERSION = "6.49.0"
_INSTALL_S, _ASK_S = 180.0, 60.0
_PROGRAM = """
import OpenAI from "openai";

const [baseURL, stream, maxRetries] = [process.argv[2], process.argv[3] === "stream", Number(process.argv[4])];
const client = new OpenAI({ baseURL, apiKey: "none" });
let text = "";
try {
  const answer = await client.completions.create({ model: "babbler", prompt: "x", stream }, { maxRetries });
  for await (const { choices } of stream ? answer : [answer]) text += choices[0].text;
  console.log(JSON.stringify({ text }));
} catch (error) {
  const { status, code, message } = error;
  console.log(JSON.stringify({ text, name: error.constructor.name, status, code, message }));
}
"""

pytestmark = [
    pytest.mark.skipif(
        node_version() < _OLDEST, reason=f"node: there is no node of version {_OLDEST} or newer"
    ),
    pytest.mark.skipif(shutil.which("npm") is None, reason="software: npm is not on this computer"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("client")
    npm = ["npm", "install", f"openai@{_VERSION}", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(npm, cwd=folder, capture_output=True, text=True, check=False, timeout=_INSTALL_S)
    if done.returncode:
        pytest.skip(f"downloads: npm cannot install openai here: {done.stderr.strip().partition(chr(10))[0]}")
    (folder / "client.mjs").write_text(_PROGRAM)
    return folder / "client.mjs"


@pytest.fixture
def ask(serve, program):
    """Returns what the client heard."""
    url = serve(limits=Limits(ping_s=0.2)).url + "/v1"

    def ask(*, stream=False, retries=0):
        command = ["node", program, url, "stream" if stream else "whole", str(retries)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_ASK_S)
        return json.loads(done.stdout)

    return ask


@pytest.mark.parametrize("stream", [False, True])
def test_javascript_client_reads_answers(ask, service, stream):
    text = answers(service, "one two three")
    assert ask(stream=stream) == {"text": text}


@pytest.mark.fault(
    "H8", "OpenAI's client for JavaScript is told to come again, and is answered then by itself"
)
def test_javascript_client_retries_when_the_queue_is_full(ask, service):
    full, accept = [True, True], service.submit

    def submit(*arguments, **options):
        if full:
            full.pop()
            raise QueueFull("4 requests are waiting already", 1.0)
        return accept(*arguments, **options)

    service.submit = submit
    error = ask()
    assert (error["name"], error["status"], error["code"]) == ("RateLimitError", 429, "queue_full")
    service.script = lambda generation: generation.finish("stop")
    assert ask(retries=2) == {"text": ""}
    assert not full


@pytest.mark.fault("H9", "OpenAI's client for JavaScript raises the error with its cause")
def test_javascript_client_raises_when_a_stream_breaks(ask, service):
    def script(generation):
        generation.say(*service.tokenizer.encode("one two three", add_special=False))
        generation.fail(PeerLost(1, "step 3", "killed by signal 9"))

    service.script = script
    error = ask(stream=True)
    assert (error["name"], error["code"]) == ("APIError", "worker_lost")
    assert "killed by signal 9" in error["message"]
