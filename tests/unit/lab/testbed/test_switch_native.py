"""The switch's arithmetic, its queue and its reading of frames, compiled with sanitizers and compared with Python."""

import heapq
import random
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tests.shaped_links import LinkModel, LinkSettings, PathModel

_NATIVE = Path(__file__).parents[4] / "tpiedge" / "lab" / "testbed" / "native"
_SANITIZERS = "-fsanitize=address,undefined"
_ETHERNET = bytes(12) + b"\x08\x00"
_TCP_SEGMENTS = 1

Exercise = Callable[[list[str]], list[str]]


@pytest.fixture(scope="module")
def exercise(tmp_path_factory: pytest.TempPathFactory) -> Exercise:
    """Lines in, lines out; fails where a sanitizer finds anything."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None or sys.platform != "linux":
        pytest.skip("compiler: no C++ compiler (or not Linux)")
    program = tmp_path_factory.mktemp("exercise") / "exercise"
    flags = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", _SANITIZERS]
    source = Path(__file__).with_name("exercise.cpp")
    command = [compiler, *flags, "-fno-sanitize-recover=all", f"-I{_NATIVE}", str(source), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if "cannot find -l" in built.stderr:
        pytest.skip("compiler: it has no sanitizers (packages libasan, libubsan)")
    assert built.returncode == 0, built.stderr

    def run(lines: list[str]) -> list[str]:
        text = "\n".join(lines)
        ended = subprocess.run([program], input=text, capture_output=True, text=True, timeout=30, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.splitlines()

    return run


def _made(settings: LinkSettings, seed: int) -> str:
    return f"link {_words(settings)} {seed}"


def _words(settings: LinkSettings) -> str:
    queue_bytes = 1 << 60 if settings.queue_bytes is None else settings.queue_bytes
    times = f"{round(settings.latency_s * 1e9)} {round(settings.jitter_s * 1e9)}"
    return f"{times} {settings.loss!r} {settings.bytes_per_s or 0.0!r} {queue_bytes}"


def _some_link(chance: random.Random) -> LinkSettings:
    return LinkSettings(
        latency_s=chance.choice([0.0, 0.001, chance.uniform(0, 0.05)]),
        jitter_s=chance.choice([0.0, chance.uniform(0, 0.01)]),
        loss=chance.choice([0.0, 0.05, 0.5]),
        bytes_per_s=chance.choice([None, 37.5e6, chance.uniform(1e4, 1e9)]),
        queue_bytes=chance.choice([None, 1 << 20, chance.randrange(1 << 18)]),
    )


def test_links_agree_with_the_model_to_the_nanosecond(exercise: Exercise) -> None:
    chance = random.Random(5)
    lines, expected = [], []
    for link in range(60):
        settings, seed, now_ns = _some_link(chance), chance.randrange(1 << 64), 0
        model = LinkModel(settings, seed)
        lines.append(_made(settings, seed))
        for _ in range(100):
            now_ns += chance.randrange(chance.choice([1, 10**4, 10**6]))
            nbytes = chance.randrange(1, 65536)
            lines.append(f"send {link} {now_ns} {nbytes}")
            expected.append(model.arrival_ns(now_ns, nbytes))
    said = exercise(lines)
    assert [None if word in ("lost", "dropped") else int(word.split()[0]) for word in said] == expected
    assert {"lost", "dropped"} < set(said)


def _plain_link(chance: random.Random) -> LinkSettings:
    return LinkSettings(latency_s=chance.uniform(0, 0.05), loss=chance.choice([0.0, 0.05]))


def test_shared_links_that_change_agree_with_the_model(exercise: Exercise) -> None:
    chance = random.Random(6)
    kinds = [chance.choice([_plain_link, _some_link]) for _ in range(12)]
    settings = [kind(chance) for kind in kinds]
    models = [LinkModel(each, seed) for seed, each in enumerate(settings)]
    lines = [_made(each, seed) for seed, each in enumerate(settings)]
    paths = [chance.sample(range(len(models)), chance.randrange(1, 5)) for _ in range(20)]
    expected: list[int | None] = []
    now_ns = 0
    for _ in range(6000):
        now_ns += chance.randrange(chance.choice([1, 10**4, 10**6]))
        if chance.random() < 0.05:
            link, changed = chance.randrange(len(models)), chance.choice([_plain_link, _some_link])(chance)
            models[link].change(changed, now_ns / 1e9)
            lines.append(f"change {link} {now_ns} {_words(changed)}")
        path, nbytes = chance.choice(paths), chance.randrange(1, 65536)
        lines.append(f"path {now_ns} {nbytes} {len(path)} {' '.join(map(str, path))}")
        expected.append(PathModel([models[link] for link in path]).arrival_ns(now_ns, nbytes))
    said = exercise(lines)
    assert [None if word in ("lost", "dropped") else int(word.split()[0]) for word in said] == expected
    assert len(set(expected)) > 1000
    assert {"lost", "dropped"} < set(said)


@pytest.mark.parametrize(
    "rates", [(37.5e6, 37.5e6), (37.5e6, 125e6, 37.5e6), (125e6, 6.25e6), (None, 37.5e6)]
)
def test_burst_arrival_matches_its_single_packets(
    exercise: Exercise, rates: tuple[float | None, ...]
) -> None:
    packets, packet_bytes, last_bytes = 44, 1500, 700
    links = [LinkSettings(latency_s=0.001, bytes_per_s=rate) for rate in rates]
    models = [LinkModel(settings) for settings in links]
    sizes = [packet_bytes] * (packets - 1) + [last_bytes]
    arrivals = []
    for nbytes in sizes:
        at_ns: int | None = 5000
        for model in models:
            assert at_ns is not None
            at_ns = model.arrival_ns(at_ns, nbytes)
        arrivals.append(at_ns or 0)
    head, tail = 5000, 5000
    shape = f"{sum(sizes)} {packets} {packet_bytes} {last_bytes}"
    made = [_made(settings, 1) for settings in links]
    for index in range(len(links)):
        (said,) = exercise([*made, f"burst {index} {head} {tail} {shape}"])
        head, tail = map(int, said.split())
    assert [head, tail] == pytest.approx([arrivals[0], arrivals[-1]], abs=2 * packets)


def test_queue_pops_earliest_first_and_ties_in_order(exercise: Exercise) -> None:
    chance, numbers = random.Random(2), count()
    heap: list[tuple[int, int]] = []
    lines, expected = [], []
    for _ in range(3000):
        if heap and chance.random() < 0.45:
            lines.append("pop")
            expected.append("{} {}".format(*heapq.heappop(heap)))
        else:
            entry = (chance.randrange(50), next(numbers))
            heapq.heappush(heap, entry)
            lines.append("push {} {}".format(*entry))
    assert exercise(lines) == expected


def _tcp_frame(payload_bytes: int, segment_bytes: int, kind: int = _TCP_SEGMENTS, options: int = 12) -> bytes:
    vnet = struct.pack("=BBHHHH", 1, kind, 0, segment_bytes, 34, 16)
    size = 20 + 20 + options + payload_bytes
    ip = struct.pack(">BBHIBBH4s4s", 0x45, 0, size, 0, 64, 6, 0, bytes(4), socket.inet_aton("10.0.0.7"))
    tcp = struct.pack(">HHIIBBHHH", 1, 2, 0, 0, (20 + options) // 4 << 4, 0, 0, 0, 0) + bytes(options)
    return vnet + _ETHERNET + ip + tcp + bytes(payload_bytes)


def test_frames_are_never_read_beyond_their_end(exercise: Exercise) -> None:
    chance = random.Random(9)
    frames = []
    for _ in range(2000):
        frame = bytearray(
            _tcp_frame(chance.randrange(200), chance.randrange(100), chance.choice([0, 1, 0x81]))
        )
        for _ in range(chance.randrange(4)):
            frame[chance.randrange(24, len(frame))] = chance.randrange(256)
        frames.append(bytes(frame[: chance.randrange(len(frame) + 1)]))
    said = exercise([f"frame {frame.hex() or '-'}" for frame in frames])
    assert len(said) == len(frames)
    for line in (line.split() for line in said if line != "foreign"):
        nbytes, packets, first, last = map(int, line[1:])
        assert 0 < last <= first <= nbytes
        assert packets >= 1
