"""The master's disk takes as long as it likes while a worker joins: the cluster does not notice, and whatever a crash
finds on the disk is all of a worker or nothing."""

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.patience import Meanwhile
from tests.process.command import wait_for
from tests.process.faulty import Fault
from tests.process.serving.serving import START_S, Serving
from tests.redeeming import redeem
from tpiedge.errors import PeerError
from tpiedge.joining.connecting import enrol, open_link
from tpiedge.joining.identity import peer_name
from tpiedge.joining.members import MemberJournal
from tpiedge.joining.tokens import parse_token
from tpiedge.transport.keys import CurveKeys
from tpiedge.wire.join import Enrolled

#: In which a cluster whose master is silent would have lost it.
SILENCE_S = 3.0
ANSWER_S = 1.5
#: Other threads note what they measured, whenever that is.
MEMBERS_THREAD = "tpiedge-members"


@pytest.fixture
def fault(tmp_path: Path) -> Fault:
    return Fault("slow-disk", tmp_path / "fault")


@pytest.fixture
def joining(fault: Fault) -> Iterator[Callable[[str], Future[Enrolled]]]:
    """Has a new worker join by a token, in a thread."""
    with ThreadPoolExecutor(1) as threads:
        yield lambda token: threads.submit(join, token, CurveKeys.generate())
        fault.end()


def join(text: str, keys: CurveKeys) -> Enrolled:
    token = parse_token(text)
    with open_link(token.address, token.master_key, keys, peer_name(keys.public)) as link:
        return enrol(link, "late", token.secret, timeout_s=START_S)


@pytest.mark.fault("P16", "the master's, of minutes: who serves does not notice; a worker that joins waits")
def test_nobody_notices(clusters: Callable[..., Serving], exact, fault: Fault, joining) -> None:
    cluster = clusters("--min-workers", 1, program=fault.program)
    cluster.start_master()
    ann = cluster.start_worker("ann")
    epoch = cluster.wait_ready(2)["epoch"]
    keys, token, late = CurveKeys.generate(), cluster.token(), cluster.token()
    join(token, keys)
    fault.begin()
    coming = joining(late)
    wait_for(lambda: fault.met, START_S)
    exact(cluster)
    master = parse_token(token)
    with open_link(master.address, master.master_key, keys, peer_name(keys.public)) as link:
        until = time.monotonic() + SILENCE_S
        while time.monotonic() < until:
            meanwhile = Meanwhile()
            enrol(link, "known", timeout_s=START_S)
            assert meanwhile.spent_s < ANSWER_S * meanwhile.patience()
    assert not coming.done()
    assert cluster.wait_ready(2)["epoch"] == epoch
    assert "silent" not in ann.log
    fault.end()
    coming.result(START_S)


@pytest.mark.parametrize("spared", [0, 1], ids=["before it has its name", "before the folder has it"])
def test_a_crash_leaves_a_member_or_a_token(
    clusters: Callable[..., Serving], fault: Fault, joining, spared: int
) -> None:
    cluster = clusters(program=fault.program)
    master = cluster.start_master()
    token = cluster.token()
    fault.begin(spared, MEMBERS_THREAD)
    coming = joining(token)
    wait_for(lambda: fault.met, START_S)
    master.end(signal.SIGKILL)
    fault.end()
    folder = cluster.state / "master"
    found = MemberJournal(folder).table.members
    assert len(found) == spared
    assert redeem(folder, parse_token(token).secret) == ("used" if found else "ok")
    with pytest.raises(PeerError):
        coming.result(START_S)
