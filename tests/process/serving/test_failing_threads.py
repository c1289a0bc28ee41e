"""A thread of the master fails: the master says which, and ends as it does when it is stopped."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.process.command import gone, wait_for
from tests.process.faulty import Fault
from tests.process.serving.serving import START_S, Serving
from tpiedge.errors import InternalError, TpiedgeError
from tpiedge.joining.connecting import enrol, open_link
from tpiedge.joining.identity import peer_name
from tpiedge.joining.tokens import parse_token
from tpiedge.transport.keys import CurveKeys


def try_to_join(text: str) -> None:
    """Joins as a worker, for threads that are idle otherwise. (It may be gone before a busy master reads from it.)"""
    token, keys = parse_token(text), CurveKeys.generate()
    with (
        suppress(TpiedgeError),
        open_link(token.address, token.master_key, keys, peer_name(keys.public), timeout_s=1.0) as link,
    ):
        enrol(link, "late", token.secret, timeout_s=1.0)


@pytest.mark.fault(
    "P2", "a thread of the master fails: `/ready` names it, and the master ends with words and status 70"
)
@pytest.mark.parametrize("thread", ["tpiedge-members", "api"])
def test_failed_master_thread_is_named_and_ends_the_master(
    clusters: Callable[..., Serving], tmp_path: Path, thread: str
) -> None:
    fault = Fault(thread, tmp_path / "fault")
    cluster = clusters(program=fault.program)
    master = cluster.start_master()
    cluster.wait_ready(1)
    node, token = cluster.rank_zero(), cluster.token()
    fault.begin()

    def failed() -> bool:
        if thread == "tpiedge-members":
            try_to_join(token)
        return f"the thread {thread} failed: ZeroDivisionError: on purpose" in master.log

    wait_for(failed, START_S)
    if thread != "api":
        answer = cluster.ready()
        assert answer.status_code == 503
        assert answer.json() == {"ready": False, "reason": f"the thread {thread} failed"}
    fault.end()
    assert master.wait() == InternalError.exit_code
    last = master.log.splitlines()[-1]
    assert (
        last
        == f"tpiedge: the thread {thread} failed: ZeroDivisionError: on purpose; start tpiedge again, and report it"
    )
    assert "Traceback" not in master.log
    wait_for(lambda: gone(node), START_S)
    assert not (cluster.state / "master" / "admin.json").exists()
