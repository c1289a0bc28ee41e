import threading
from pathlib import Path

from tpiedge.tracing.tracer import COMPUTE, LOAD, WAIT, TraceEvent, TracePart, Tracer, read_part


def test_events_are_read_back_sorted_by_start(tmp_path: Path) -> None:
    tracer = Tracer(8)
    tracer.add(WAIT, tracer.name("ffn"), 3.0, 4.0, 7)
    tracer.add(COMPUTE, tracer.name("head"), 2.0, 2.5, step=5)
    tracer.add(LOAD, tracer.name("up"), 1.0, 3.5, 7, nbytes=1 << 40)
    tracer.write(tmp_path / "part", 3)
    assert read_part(tmp_path / "part") == TracePart(
        3,
        (
            TraceEvent("load", "up", 1.0, 3.5, 7, nbytes=1 << 40),
            TraceEvent("compute", "head", 2.0, 2.5, step=5),
            TraceEvent("wait", "ffn", 3.0, 4.0, 7),
        ),
        0,
    )
    assert [path.name for path in tmp_path.iterdir()] == ["part"]


def test_threads_record_concurrently_and_dropped_events_are_counted(tmp_path: Path) -> None:
    threads, events = 4, 500
    tracer = Tracer(threads * events - 100)
    names = [tracer.name(f"thread {number}") for number in range(threads)]
    together = threading.Barrier(threads)

    def record(name: int) -> None:
        together.wait()
        for number in range(events):
            tracer.add(LOAD, name, 1.0 + number, 1.5 + number, name, number, number)

    running = [threading.Thread(target=record, args=(name,)) for name in names]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    tracer.write(tmp_path / "part", 0)
    part = read_part(tmp_path / "part")
    assert (len(part.events), part.dropped) == (threads * events - 100, 100)
    for event in part.events:  # none is a mixture of two
        number = event.nbytes
        assert event == TraceEvent(
            "load", f"thread {event.layer}", 1.0 + number, 1.5 + number, event.layer, number or -1, number
        )
    assert len({(event.layer, event.nbytes) for event in part.events}) == len(part.events)
