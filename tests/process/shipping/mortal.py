"""A worker that dies again and again: `python mortal.py` with an order as JSON on its input.

Each further line is a number of bytes of the share. A child is forked, which takes the transfer up and ends as by
`kill -9` in the middle of the write with which so many bytes would be there. Its status is the answer, a line.
"""

import json
import os
import signal
import sys
from pathlib import Path

import msgspec

from tpiedge.pack.store import ShardStore
from tpiedge.shipping.fetcher import fetch
from tpiedge.transport.endpoint import FILES
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqSpoke
from tpiedge.wire.fields import ShareRanges

LINK_S = 5.0


def main() -> None:
    """Forks, as to import everything anew takes longer than a life. This process itself opens no socket."""
    order = json.loads(sys.stdin.readline())
    while line := sys.stdin.readline():
        child = os.fork()
        if not child:
            live(order, int(line))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201


def live(order: dict, end: int) -> None:
    def progress(done: int, _total: int) -> None:
        if not dying:
            die_within(max(1, end - done))
            dying.append(True)

    dying: list[bool] = []
    keys = CurveKeys(*order["keys"])
    share = msgspec.convert(order["share"], ShareRanges)
    with ZmqSpoke(
        order["address"], order["master"], keys, order["name"], hub_name="master", plane=FILES
    ) as spoke:
        spoke.monitor.wait(LINK_S)  # or the first request is sent a tenth of a second later
        store = ShardStore(Path(order["store"]))
        fetch(spoke, store, order["pack"], share, progress, sync_bytes=order["sync_bytes"]).close()


def die_within(left: int) -> None:
    """Ends this process after `left` more bytes have reached the disk; the last write is partial."""
    write = os.pwrite

    def pwrite(fd: int, data: memoryview, offset: int) -> int:
        nonlocal left
        if len(data) < left:
            left -= len(data)
            return write(fd, data, offset)
        write(fd, memoryview(data)[:left], offset)
        os.kill(os.getpid(), signal.SIGKILL)
        return signal.pause()

    os.pwrite = pwrite


main()
