"""A master refuses a tokenizer that makes millions of tokens of a line, before it has made any."""

import json
import resource
import shutil
import signal
import subprocess

from tests.process.bad_input.refusal import USER
from tests.process.command import COMMAND
from tests.process.serving.serving import HOST, free_ports
from tpiedge.model.source import DEMO, resolve_model
from tpiedge.units import GIB

_ADDRESSES = 4 * GIB  # a backstop: the memory that it takes is measured in tests/unit/model/test_bombs.py
_CPU_S = 30


def test_a_tokenizer_that_explodes(cache, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(resolve_model(DEMO), folder)
    path = folder / "tokenizer.json"
    tenfold = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
    chain = {"type": "Sequence", "normalizers": [tenfold] * 7}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"normalizer": chain}))
    with subprocess.Popen(
        [COMMAND, "master", "--model", str(folder), "--listen", f"{HOST}:{free_ports()}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_limit,
    ) as master:
        try:
            out, err = master.communicate(timeout=60)
        finally:
            if master.poll() is None:
                master.send_signal(signal.SIGKILL)
    assert master.returncode == USER, err
    assert out == ""
    said = err.splitlines()[-1]
    assert said.startswith(f"tpiedge: {path}: its normalizer can make a text more than 256 times as long")


def _limit():
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
