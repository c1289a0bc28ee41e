import time
from tests.process.network.conftest import PROMPT
def test_long(clusters, exact):
    c = clusters("--min-workers", 2)
    c.start_master(); c.join("worker1"); c.join("worker2"); c.wait_ready(3)
    for cut in ("dropping", ):
        with getattr(c.namespaces, cut)("worker1"):
            t=time.monotonic()
            c.wait_until(lambda s: not s["ready"])
            print(cut, "not ready after", time.monotonic()-t)
            time.sleep(max(0, 20-(time.monotonic()-t)))
        t=time.monotonic()
        c.wait_until(lambda s: next(n for n in s["nodes"] if n["host"]=="worker1")["state"]!="lost", 60)
        print(cut, "back after", time.monotonic()-t)
        c.wait_ready(3, 60)
        print(cut, "ready after", time.monotonic()-t)
