"""Bounds of `tpiedge bench context`, by tables. Every time is chosen so that the figures are exact."""

from pathlib import Path

import pytest

from tpiedge.errors import PeerError
from tpiedge.lab.bench.context_figures import (
    PagedAnswer,
    Restored,
    first_s,
    keeping_record,
    paged_record,
    restore_record,
    seconds_per_token,
    streams_record,
)
from tpiedge.lab.bench.context_runs import ContextWish, disk_name, drop_cached, read_files
from tpiedge.lab.bench.serve_figures import TimedAnswer


def paged(seconds: float, nbytes: int = 500, apart_s: float = 0.25) -> PagedAnswer:
    """An answer after pages from a disk of 1000 bytes a second."""
    return PagedAnswer(seconds, 64, nbytes, 1000.0, apart_s)


@pytest.mark.parametrize(
    ("answer", "ratio", "within"),
    [
        (paged(0.75), 1.0, True),
        (paged(0.25 + 0.6), 1.2, True),
        (paged(1.25), 2.0, False),
        (paged(0.125), -0.25, True),
        (paged(0.25, nbytes=0), None, True),
        (paged(0.5, nbytes=0), None, False),
    ],
)
def test_bound_of_a_first_token_is_the_disks_time_and_what_is_apart(
    answer: PagedAnswer, ratio: float | None, within: bool
) -> None:
    assert answer.ratio == (None if ratio is None else pytest.approx(ratio))
    record = paged_record([answer])
    assert record["within_bound"] == within
    assert record["without_pages"] == (ratio is None)
    assert (record["ratio"] is None) == (ratio is None)


def test_restored_prompts_are_compared_with_computing_them() -> None:
    found = restore_record(
        [Restored(30.0, paged(0.75)), Restored(90.0, paged(1.5)), Restored(6.0, paged(0.5))]
    )
    assert found["times_faster"] == {"median": 40.0, "min": 12.0, "max": 60.0}
    assert found["ratio"] == {"median": 1.0, "min": 0.5, "max": 2.5}
    assert found["first_token_s"]["max"] == 1.5
    assert (found["answers"], found["within_bound"]) == (3, 2)


def test_settings_are_compared_within_a_repeat() -> None:
    """Between repeats the computer's speed changes twofold."""
    found = streams_record({"room": [100.0, 50.0], "disk": [80.0, 40.0], "computed": [25.0, 25.0]})
    assert found["to_room"]["disk"] == {"median": 0.8, "min": 0.8, "max": 0.8}
    assert found["to_room"]["computed"] == {"median": 0.375, "min": 0.25, "max": 0.5}
    assert found["to_room"]["room"]["median"] == 1.0
    found = keeping_record({"none": [1.0, 2.0], "kept": [1.25, 2.5]})
    assert found["cost"] == {"median": 0.25, "min": 0.25, "max": 0.25}
    assert found["s_per_token"]["kept"]["max"] == 2.5


def answer(*token_s: float, error: str = "") -> TimedAnswer:
    return TimedAnswer(1.0, token_s, 9.0, 8, error)


def test_time_per_token_is_the_median_of_answers() -> None:
    assert seconds_per_token([answer(2, 3, 4), answer(2, 8), answer(2, 4)]) == 2.0
    with pytest.raises(PeerError, match="too few tokens"):
        seconds_per_token([answer(2)])


def test_failed_answers_have_no_figures() -> None:
    assert first_s(answer(3.0)) == 2.0
    for failed, words in (
        (answer(), "no token came"),
        (answer(3.0, error="a node was lost"), "a node was lost"),
    ):
        with pytest.raises(PeerError, match=words):
            first_s(failed)


@pytest.mark.parametrize(("prompt", "stream"), [(4096, 256), (64, 64), (1984, 64), (2048, 128)])
def test_streams_have_whole_pages(prompt: int, stream: int) -> None:
    wish = ContextWish(("--threads", "1"), ("--model", "demo"), ("--model-dir", "x"), 3, 99, 64, prompt, 5)
    assert wish.stream_tokens == stream
    assert wish.most_tokens > prompt
    cluster = wish.cluster(2 * stream, 8, "--kv-disk", "1GB")
    assert cluster.workers == 2
    assert cluster.worker_options == ("--model-dir", "x", "--threads", "1", "--kv-disk", "1GB")
    kv_tokens = cluster.options[cluster.options.index("--kv-tokens") + 1]
    assert (kv_tokens, "--kv-disk" in cluster.options) == (str(16 * stream), True)


def test_files_are_read_past_the_page_cache(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(3)]
    for number, path in enumerate(paths, 1):
        path.write_bytes(bytes(4096 * number))
    drop_cached(paths)
    assert read_files(paths).bytes_per_s > 0
    assert disk_name(Path("/proc")).endswith(" (proc)")
    with pytest.raises(PeerError, match="no page"):
        read_files([])
