import threading

from tpiedge.errors import PeerError
from tpiedge.worker.background import Background

WAIT_S = 10.0


def test_result_is_taken_once_or_dropped_on_cancel() -> None:
    dropped: list[int] = []
    work = Background("test", dropped.append)
    for act in (work.pop_result, work.cancel):
        ended = threading.Event()
        work.start(lambda _cancelled, ended=ended: 5 if not ended.set() else 0)  # type: ignore[misc]
        assert ended.wait(WAIT_S)
        assert work._thread is not None
        work._thread.join(WAIT_S)
        assert not work.idle
        assert act() == (5 if act == work.pop_result else None)
        assert work.idle
        assert work.pop_result() is None
    assert dropped == [5]
    work.close()


def test_exception_in_background_becomes_peer_error() -> None:
    work: Background[int] = Background("test")
    work.start(lambda _cancelled: 1 // 0)
    while (found := work.pop_result()) is None:
        threading.Event().wait(0.001)
    assert isinstance(found, PeerError)
    assert "ZeroDivisionError" in str(found)
    work.close()
