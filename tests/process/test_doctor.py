"""The real `tpiedge doctor`: complete, quick, and with the right status."""

import json
import socket
import time

import pytest


@pytest.mark.alone  # a machine that is busy does not load torch in the time that a check has
def test_doctor(patience, tpiedge, tmp_path):
    started = time.monotonic()
    ended = tpiedge("doctor", "--json", "--cache", tmp_path)
    assert time.monotonic() - started < 12 * patience
    record = json.loads(ended.out)
    checks = {item["check"] for item in record["findings"]}
    wanted = "python encryption torch kernels processor cores memory swap disk clock firewall addresses MTU"
    assert checks >= {*wanted.split(), "host name", "port 7070", "port 7073", "port 8080"}
    assert ended.status == (4 if record["verdict"] == "fail" else 0), ended.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thin
def test_a_master_that_is_not_there(tpiedge):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    ended = tpiedge("doctor", "--connect", f"127.0.0.1:{port}")
    assert ended.status == 4
    assert f"fail  master 127.0.0.1:{port}" in ended.out
    assert "is the master running" in ended.out
    assert len(ended.err.splitlines()) == 1
    assert ended.err.startswith("tpiedge: tpiedge cannot work here as it is: ")


def test_an_address_that_is_none(tpiedge):
    assert tpiedge("doctor", "--connect", "http://pi").status == 2
