"""The manual's first page, typed by somebody who has nothing but it."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.process.command import COMMAND
from tests.process.network.namespaces import enter, new_namespace, why_impossible
from tests.process.test_import_gguf import write_text_gguf_of
from tpiedge.model.source import DEMO, resolve_model

ROOT = Path(__file__).parents[2]
_LIMIT_S = 120.0
_POLL_S = 0.1
_BLOCK = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*) -->\n)?^```[a-z]*\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL
)
_NOT_RUN = "not run by tests: "
_SERVES = "runs until it is stopped"


@dataclass(frozen=True)
class Block:
    text: str
    note: str


def blocks(page: str) -> list[Block]:
    return [Block(match["text"], match["note"] or "") for match in _BLOCK.finditer(page)]


def test_skipped_readme_blocks_give_a_reason() -> None:
    notes = [block.note for block in blocks((ROOT / "README.md").read_text())]
    assert len(notes) > 5
    assert all(note in ("", _SERVES) or len(note.removeprefix(_NOT_RUN)) > 10 for note in notes)
    assert sum(note.startswith(_NOT_RUN) for note in notes) < len(notes) / 2


class Reader:
    """Somebody in a folder with a model of their own, on a machine with no network but its own loopback."""

    def __init__(self, folder: Path, network: int) -> None:
        self._folder = folder
        self._network = network
        (folder / "home").mkdir()
        path = f"{Path(COMMAND).parent}:{os.environ['PATH']}"
        self._environment = os.environ | {"HOME": str(folder / "home"), "PATH": path}
        self._type("ip link set lo up")

    def types(self, block: Block) -> None:
        ended = self._type(block.text)
        assert ended.returncode == 0, f"{block.text}\n{ended.stdout}\n{ended.stderr}"

    @contextlib.contextmanager
    def leaves_running(self, block: Block, until: str) -> Iterator[None]:
        log = self._folder / "running"
        with open(log, "wb") as file:
            running = subprocess.Popen(
                ["bash", "-c", f"exec {block.text}"],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                preexec_fn=lambda: enter(self._network),
            )
        try:
            deadline = time.monotonic() + _LIMIT_S
            while until not in log.read_text():
                assert running.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(_POLL_S)
            yield
            running.send_signal(signal.SIGTERM)
            assert running.wait(_LIMIT_S) == 0, log.read_text()
        finally:
            with contextlib.suppress(ProcessLookupError):  # as it should be
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()

    def _type(self, text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            preexec_fn=lambda: enter(self._network),
        )


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    if why := why_impossible():
        pytest.skip(why)
    for name in [name for name in os.environ if name.startswith(("TPIEDGE_", "XDG_"))]:
        monkeypatch.delenv(name)
    write_text_gguf_of(resolve_model(DEMO), tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf", "Q8_0")
    network = new_namespace()
    try:
        yield Reader(tmp_path, network)
    finally:
        os.close(network)


def test_readme_commands_work_as_written(reader: Reader) -> None:
    with contextlib.ExitStack() as stack:
        for block in blocks((ROOT / "README.md").read_text()):
            if block.note == _SERVES:
                stack.enter_context(reader.leaves_running(block, "serving "))
            elif not block.note:
                reader.types(block)
