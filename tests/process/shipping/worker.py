"""A worker that fetches a share into a store, as a process: `python worker.py` with an order as JSON on its input.

It kills itself as by `kill -9` once `kill_at` bytes of the share are there. Its output is one JSON object.
"""

import json
import os
import signal
import sys
from pathlib import Path

import msgspec

from tpiedge.errors import TpiedgeError
from tpiedge.pack.store import ShardStore
from tpiedge.shipping.fetcher import fetch
from tpiedge.transport.endpoint import FILES
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqSpoke
from tpiedge.wire.fields import ShareRanges


def main() -> None:
    order = json.loads(sys.stdin.readline())
    steps: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        steps.append((done, total))
        if len(steps) > 1 and done >= order.get("kill_at", total + 1):
            os.kill(os.getpid(), signal.SIGKILL)

    keys = CurveKeys(*order["keys"])
    share = msgspec.convert(order["share"], ShareRanges)
    with ZmqSpoke(
        order["address"], order["master"], keys, order["name"], hub_name="master", plane=FILES
    ) as spoke:
        try:
            store = ShardStore(Path(order["store"]))
            fetch(spoke, store, order["pack"], share, progress, sync_bytes=order["sync_bytes"]).close()
            ended = "done"
        except TpiedgeError as error:
            ended = f"{type(error).__name__}: {error}"
    sys.stdout.write(json.dumps({"ended": ended, "first": steps[0] if steps else None}))


main()
