"""Shares of a made-up model (tests/cluster/made_up.py), whose matrices q and k every worker gets whole."""

import signal

import pytest

from tests.cluster.made_up import CONFIG, write_made_up
from tests.cluster.packs import split_of
from tests.process.shipping.shares import check_equal, ended, held_bytes, share_bytes
from tests.process.shipping.test_resuming import life
from tpiedge.pack.reader import Pack
from tpiedge.pack.specs import Precision
from tpiedge.pack.store import ShardStore


@pytest.fixture(scope="module", params=[Precision.F32, Precision.Q4])
def pack(request, tmp_path_factory):
    return Pack.open(write_made_up(tmp_path_factory.mktemp("made-up") / "model", request.param))


@pytest.mark.parametrize(("number", "shares"), [(1, "1,3,2"), (2, "1,1:0,0:1")])
def test_share_of_unlike_layers_is_resumed_by_a_killed_worker(
    number, shares, master, start_worker, pack, tmp_path
):
    share, store = split_of(CONFIG, shares)[number], ShardStore(tmp_path / "store")
    total = share_bytes(pack, share)
    mortal = start_worker(0, share, store.folder, script="mortal.py", sync_bytes=1 << 14)
    for part in (0.2, 0.5, 0.9):
        assert life(mortal, int(part * total)) == -signal.SIGKILL
    with store.open(master.identity) as copy:
        assert copy.verify(share) == {}
        held = held_bytes(copy, share)
    assert total // 2 < held < total
    before = master.shipped()
    assert ended(start_worker(0, share, store.folder)) == {"ended": "done", "first": [held, total]}
    assert master.shipped() - before == total - held
    with store.open(master.identity) as copy:
        assert copy.missing(share) == copy.verify(share) == {}
        check_equal(pack, copy.pack, share)
