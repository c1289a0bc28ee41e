"""What a master says first on a terminal, and where nobody draws, on a machine that others reach."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from tests.process.command import COMMAND, end_terminal
from tests.process.network.conftest import machines
from tests.process.network.namespaces import MASTER, Namespaces
from tests.process.serving.machines import measured
from tests.process.serving.serving import START_S
from tpiedge.cli.master_lines import qr_lines

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="system: network namespaces are Linux's")

WIDE, NARROW = 80, 20


@pytest.fixture(scope="module")
def namespaces() -> Iterator[Namespaces]:
    with machines() as made:
        yield made


@pytest.mark.parametrize(
    ("columns", "changes", "drawn"),
    [
        (WIDE, {}, True),
        (NARROW, {}, False),
        (WIDE, {"TERM": "dumb"}, False),
        (WIDE, {"PYTHONIOENCODING": "latin-1"}, False),
    ],
    ids=["wide", "narrow", "dumb", "without UTF-8"],
)
def test_the_page_has_a_picture_for_phones(
    namespaces: Namespaces, tmp_path: Path, columns: int, changes: dict[str, str], drawn: bool
) -> None:
    measured(tmp_path / "master")
    listen = ["--listen", "0.0.0.0:7070", "--http", "0.0.0.0:8080", "--insecure"]
    words = ["master", "demo", "--threads", "1", "--state", str(tmp_path), *listen]
    usual = {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "NO_COLOR": ""}
    with namespaces.inside(MASTER):
        master = pexpect.spawn(
            COMMAND, words, timeout=START_S, encoding="utf-8", env=os.environ | usual | changes,
            dimensions=(24, columns),
        )  # fmt: skip
    try:
        master.expect("ready: 1 node")
        said = master.before
    finally:
        end_terminal(master)
    url = f"http://{namespaces.addresses[MASTER]}:8080"
    assert (
        f"on another machine:  tpiedge worker --connect {namespaces.addresses[MASTER]}:7070 --token " in said
    )
    assert f"serving demo at {url}/v1\r\n" in said
    page = f"its page, for a browser of any device here:  {url}/\r\n"
    assert page in said
    picture = "".join(f"{line}\r\n" for line in qr_lines(f"{url}/", WIDE))
    assert (f"{page}{picture}" in said) == drawn
    assert ("\x1b" in said) == drawn
