import os
import shlex
import signal
from pathlib import Path

import openai
import pexpect
import pytest

from tests.process.command import COMMAND, end_terminal, run_command
from tests.process.conftest import PROMPT, TOKENS
from tests.process.serving.serving import HOST, free_ports
from tpiedge.host.addresses import PURPOSES

START_S = 40


@pytest.fixture
def terminal(tmp_path: Path):
    opened: list[pexpect.spawn] = []

    def open_one(machine: str, *arguments: str) -> pexpect.spawn:
        settings = {
            "TPIEDGE_STATE": str(tmp_path / machine),
            "TPIEDGE_MASTER_THREADS": "1",
            "TPIEDGE_WORKER_THREADS": "1",
        }
        if machine != "desk":
            settings["TPIEDGE_CACHE"] = str(tmp_path / f"{machine}-cache")
        spawned = pexpect.spawn(
            COMMAND, list(arguments), env=os.environ | settings, timeout=START_S, encoding="utf-8"
        )
        opened.append(spawned)
        return spawned

    yield open_one
    for spawned in opened:
        end_terminal(spawned)


@pytest.mark.thin
def test_a_cluster_started_by_hand_streams_the_exact_text(terminal, tmp_path, expected):
    port = free_ports()
    listen = ["--listen", f"{HOST}:{port}", "--http", f"{HOST}:{port + len(PURPOSES)}"]
    desk = terminal("desk", "master", "--model", "demo", "--min-workers", "2", *listen)
    desk.expect(r"Compute on another machine, too:\r\n  tpiedge (worker [^\r\n]*)\r\n")
    copied = shlex.split(desk.match[1])
    made = run_command("token", "create", TPIEDGE_STATE=str(tmp_path / "desk"))
    assert f"on another machine:  tpiedge worker --connect {HOST}:{port} --token tpi1_" in made.err
    kitchen = terminal("kitchen", *copied)
    bedroom = terminal("bedroom", "worker", "--token", made.out.strip())
    for worker in (kitchen, bedroom):
        worker.expect(r"joined cluster \w+ as \S+ \(w-\w+\)")
    desk.expect(r"ready: 3 nodes \(master, .*\)")

    with openai.OpenAI(
        base_url=f"http://{HOST}:{port + len(PURPOSES)}/v1", api_key="none", max_retries=0, timeout=30
    ) as client:
        stream = client.completions.create(
            model="demo", prompt=PROMPT, max_tokens=TOKENS, temperature=0, stream=True
        )
        pieces = [chunk.choices[0].text for chunk in stream]
    assert len(pieces) > TOKENS / 2
    assert "".join(pieces) == expected

    for one in (kitchen, bedroom, desk):
        one.sendintr()  # Ctrl-C
        one.expect(pexpect.EOF)
        one.wait()
        assert one.signalstatus is None
        assert "Traceback" not in one.before
    assert "tpiedge: stopped; running workers join again at the next start" in desk.before
    assert desk.exitstatus == 128 + signal.SIGINT
