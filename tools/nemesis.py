"""Break a cluster again and again while clients read answers, and compare every answer with the undisturbed one.

    .venv/bin/python -m tools.nemesis [MODEL] [--kills 100] [--seed 1] [--workers 2] [--clients 4] [--tokens 300]
        [--precision q4] [--json]

A master and its workers, real processes on loopback with folders of their own, answer clients that ask one thing after
the other, greedy or sampled with a seed. First each question is answered without a fault. Then things break at random
instants, sometimes two at once: a node, an agent or rank 0 is killed (-9), one is stopped for 0.1 to 10 s, a machine
with all that runs on it is, a worker leaves in order, another one joins for a while. What does not mend itself, as a
killed agent, is started again some seconds later. With --precision q8 or q4 every answer must be the undisturbed one,
byte for byte.

Afterwards the cluster must be whole, answer as ever, and hold what it held before: descriptors and threads of the
master and of the agents, folders of the workers. With --workers 1 or 2, --min-workers is one less, so that the cluster
goes on without a worker.

Printed: how many answers there were, how many were wrong or lost, and the time from a fault to the next token of each
answer that paused for it. Exit status 0 where nothing is wrong, lost or left over; 1 otherwise. Linux.
"""

import argparse
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.process.serving.machines import Worker
from tests.process.serving.serving import Serving

_SLOW = 1e6  # as every machine says of its memory: one more is worth having
_ANSWER_S = 300.0
_QUIET_S = (0.3, 4.0)  # from one fault to the next
_TWO_AT_ONCE = 0.2
_AWAY_S = (0.0, 5.0)
_STOPPED_S = (0.1, 10.0)
_SETTLED_S = 120.0
_PROMPTS = (
    "Once upon a time",
    "The little fox",
    "Lily and Tom went to",
    "One day a big dog",
    "In the garden",
    "A",
)
_MORE_DESCRIPTORS = 8
_MORE_BYTES = 32 << 20


@dataclass
class Question:
    """A request, and its answer without a fault."""

    body: dict[str, Any]
    text: str = ""


@dataclass
class Found:
    """What the clients saw. `pauses`: seconds from a fault to the next token."""

    answers: int = 0
    tokens: int = 0
    paused: int = 0
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    pauses: list[tuple[str, float]] = field(default_factory=list)


class Clients:
    """`--clients` threads, each with a question after the other until `stop`. `last_fault` is set by the nemesis."""

    def __init__(self, url: str, questions: Sequence[Question], count: int, seed: int) -> None:
        self.found = Found()
        self.last_fault = ("none", time.monotonic())
        self._url = url
        self._questions = questions
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(
                target=self._run, args=(random.Random(f"{seed}/{number}"),), name=f"client {number}"
            )
            for number in range(count)
        ]

    def start(self) -> None:
        """Returns at once."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Waits for the answers under way."""
        self._ended.set()
        for thread in self._threads:
            thread.join(_ANSWER_S)
            if thread.is_alive():
                self.found.lost.append(f"{thread.name} has no end after {_ANSWER_S:.0f} s")

    def _run(self, draws: random.Random) -> None:
        with httpx.Client(base_url=self._url, timeout=_ANSWER_S, trust_env=False) as client:
            while not self._ended.is_set():
                self._ask(client, draws.choice(self._questions))

    def _ask(self, client: httpx.Client, question: Question) -> None:
        why, text, usage, pauses, fault = "", "", {}, [], self.last_fault
        try:
            for kind, said in events(client, question.body):
                if kind == "comment":
                    fault = self.last_fault if not why else fault
                    why = said
                elif kind == "error":
                    raise ValueError(said)
                else:
                    if why and said.get("choices"):
                        pauses.append((fault[0], time.monotonic() - fault[1]))
                        why = ""
                    text += "".join(choice["text"] for choice in said.get("choices", ()))
                    usage = said.get("usage") or usage
            lost = ""
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            lost = f"{type(error).__name__}: {error}"
        with self._lock:
            found = self.found
            found.answers += 1
            found.tokens += usage.get("completion_tokens", 0)
            found.paused += bool(usage.get("pauses"))
            found.pauses += pauses
            if lost:
                found.lost.append(lost)
            elif text != question.text:
                found.wrong.append(f"{question.body}: {text!r} where {question.text!r} belongs")


def events(client: httpx.Client, body: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """("comment", words), ("error", words) and ("event", value) of a streamed completion. Raises ValueError where it
    ends early, httpx.HTTPError."""
    with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != httpx.codes.OK:
            raise ValueError(f"{response.status_code}: {response.read().decode(errors='replace')}")
        for line in response.iter_lines():
            if line == "data: [DONE]":
                return
            if line.startswith(": ") and line != ": ping":
                yield "comment", line[2:]
            if line.startswith("data: "):
                value = json.loads(line[6:])
                yield ("error", json.dumps(value)) if "error" in value else ("event", value)
    raise ValueError("the stream ended early")


class Nemesis:
    """Draws faults and mends what does not mend itself. Everything is a function of the seed but the instants."""

    def __init__(self, cluster: Serving, seed: int) -> None:
        self.count: dict[str, int] = {}
        self._cluster = cluster
        self._draws = random.Random(seed)
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._away: set[str] = set()  # workers without an agent, or that stand still
        self._guests = 0
        self._faults: dict[str, Callable[[], bool]] = {
            "node killed": self._kill_node,
            "agent killed": self._kill_agent,
            "rank 0 killed": self._kill_rank_zero,
            "node stopped": self._stop_node,
            "rank 0 stopped": self._stop_rank_zero,
            "machine stopped": self._stop_machine,
            "worker left": self._leave,
            "worker joined": self._join,
        }

    def strike(self, on_fault: Callable[[str, float], None]) -> int:
        """One fault, or two; `on_fault(name, when)` is told of each. Returns how many there were."""
        struck = 0
        for _ in range(2 if self._draws.random() < _TWO_AT_ONCE else 1):
            name = self._draws.choice(list(self._faults))
            begun = time.monotonic()
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended by an earlier fault
                if self._faults[name]():
                    self.count[name] = self.count.get(name, 0) + 1
                    struck += 1
                    on_fault(name, begun)
        return struck

    def wait(self, seconds: float) -> None:
        """Mends meanwhile what is due."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.mend()
            time.sleep(0.02)

    def mend(self, *, everything: bool = False) -> None:
        """What is due, or `everything`."""
        now = time.monotonic()
        for due, act in sorted(self._due, key=lambda one: one[0]):
            if everything or due <= now:
                self._due.remove((due, act))
                act()

    def _later(self, seconds: tuple[float, float], act: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + self._draws.uniform(*seconds), act))

    def _worker(self) -> Worker | None:
        """One that is there."""
        there = [worker for name, worker in self._cluster.workers.items() if name not in self._away]
        return self._draws.choice(there) if there else None

    def _kill_node(self) -> bool:
        node = self._node()
        if node is not None:
            node.kill()
        return node is not None

    def _stop_node(self) -> bool:
        node = self._node()
        if node is not None:
            self._stand_still([node])
        return node is not None

    def _node(self) -> psutil.Process | None:
        """Or the process that stands by."""
        worker = self._worker()
        children = worker.agent.children() if worker is not None else []
        return self._draws.choice(children) if children else None

    def _kill_rank_zero(self) -> bool:
        pid = self._cluster.node("master")["pid"]
        if pid is not None:
            psutil.Process(pid).kill()
        return pid is not None

    def _stop_rank_zero(self) -> bool:
        pid = self._cluster.node("master")["pid"]
        if pid is not None:
            self._stand_still([psutil.Process(pid)])
        return pid is not None

    def _stop_machine(self) -> bool:
        worker = self._worker()
        if worker is not None:
            self._away.add(worker.name)
            self._stand_still([worker.agent, *worker.agent.children()], worker.name)
        return worker is not None

    def _stand_still(self, processes: Sequence[psutil.Process], name: str = "") -> None:
        for process in processes:
            process.suspend()

        def go_on() -> None:
            self._away.discard(name)
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()

        self._later(_STOPPED_S, go_on)

    def _kill_agent(self) -> bool:
        worker = self._worker()
        if worker is not None:
            worker.agent.kill()
            worker.process.wait()
            self._comes_back(worker)
        return worker is not None

    def _leave(self) -> bool:
        worker = self._worker()
        if worker is not None:
            worker.process.end()
            self._comes_back(worker)
        return worker is not None

    def _comes_back(self, worker: Worker) -> None:
        self._away.add(worker.name)

        def start() -> None:
            self._away.discard(worker.name)
            self._cluster.start_worker(worker.name, token=False)

        self._later(_AWAY_S, start)

    def _join(self) -> bool:
        self._guests += 1
        guest = self._cluster.start_worker(f"guest-{self._guests}", bytes_per_s=_SLOW)
        self._away.add(guest.name)

        def leave() -> None:
            guest.process.end()
            self._away.discard(guest.name)
            del self._cluster.workers[guest.name]

        self._later((2.0, 8.0), leave)
        return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Break, compare, print."""
    options = _parser().parse_args(arguments)
    os.environ["TPIEDGE_CONFIG"] = os.devnull
    with tempfile.TemporaryDirectory(prefix="tpiedge-nemesis-") as place:
        serving = Serving(
            Path(place) / "cluster", "--min-workers", max(0, options.workers - 1), "--precision", options.precision,
            "--context", 1024, "--kv-tokens", 1024 * options.clients,
            model=options.model,
            cache=Path(place) / "cache", bytes_per_s=_SLOW,
        )  # fmt: skip
        with contextlib.closing(serving):
            record = _run(serving, options)
    record["faults"] = [*record["wrong"], *record["lost"], *record["left_over"]]
    if options.as_json:
        print(json.dumps(record))
    else:
        _print(record)
    return int(bool(record["faults"]) or not record["answers"])


def _run(serving: Serving, options: argparse.Namespace) -> dict[str, Any]:
    say = (lambda _: None) if options.as_json else (lambda line: print(line, flush=True))
    serving.start_master()
    names = [f"worker-{number}" for number in range(options.workers)]
    for name in names:
        serving.start_worker(name, bytes_per_s=_SLOW)
    serving.wait_ready(1 + options.workers)
    questions = _questions(serving, options.seed, options.tokens)
    before = _held(serving, names)
    say(f"{len(questions)} questions are answered; {options.kills} faults, {options.clients} clients")
    clients = Clients(serving.url, questions, options.clients, options.seed)
    nemesis = Nemesis(serving, options.seed)

    def note(name: str, when: float) -> None:
        clients.last_fault = (name, when)

    clients.start()
    struck, draws = 0, random.Random(f"{options.seed}/quiet")
    try:
        while struck < options.kills:
            nemesis.wait(draws.uniform(*_QUIET_S))
            struck += nemesis.strike(note)
        nemesis.wait(_QUIET_S[1])
    finally:
        nemesis.mend(everything=True)
        clients.stop()
    found = clients.found
    left_over = _left_over(serving, options.workers, names, before)
    again = [one for one in questions if _answer(serving, one.body) != one.text]
    found.wrong += [f"afterwards: {one.body}" for one in again]
    return {
        "kills": struck,
        "by_kind": nemesis.count,
        "answers": found.answers,
        "tokens": found.tokens,
        "paused_answers": found.paused,
        "wrong": found.wrong,
        "lost": found.lost,
        "left_over": left_over,
        "seconds_to_the_next_token": _spread([seconds for _, seconds in found.pauses]),
        "seconds_by_kind": {
            kind: _spread([seconds for name, seconds in found.pauses if name == kind])
            for kind in sorted({name for name, _ in found.pauses})
        },
    }


def _spread(seconds: Sequence[float]) -> dict[str, float] | None:
    if not seconds:
        return None
    ordered = sorted(seconds)
    found = {
        "median": statistics.median(ordered),
        "p90": ordered[int(0.9 * (len(ordered) - 1))],
        "max": ordered[-1],
    }
    return {name: round(value, 3) for name, value in found.items()}


def _questions(serving: Serving, seed: int, tokens: int) -> list[Question]:
    """Greedy and sampled ones, with their answers."""
    draws = random.Random(f"{seed}/questions")
    with serving.client() as client:
        model = next(iter(client.models.list())).id
    found = []
    for prompt in _PROMPTS:
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
        }
        body |= {"ignore_eos": True, "stream_options": {"include_usage": True}}
        sampled = {"temperature": 0.8, "seed": draws.randrange(1 << 31), "presence_penalty": 0.3}
        found += [Question(body), Question(body | sampled)]
    for question in found:
        question.text = _answer(serving, question.body)
    return found


def _answer(serving: Serving, body: dict[str, Any]) -> str:
    with httpx.Client(base_url=serving.url, timeout=_ANSWER_S, trust_env=False) as client:
        told = [said for kind, said in events(client, body) if kind == "event"]
    return "".join(choice["text"] for event in told for choice in event.get("choices", ()))


def _held(serving: Serving, names: Sequence[str]) -> dict[str, tuple[int, int, int]]:
    """Descriptors, threads and resident bytes of the master and of each worker's agent."""
    processes = {"master": psutil.Process(serving.master.pid)}
    processes |= {name: serving.workers[name].agent for name in names}
    return {
        name: (process.num_fds(), process.num_threads(), process.memory_info().rss)
        for name, process in processes.items()
    }


def _left_over(
    serving: Serving, workers: int, names: Sequence[str], before: dict[str, tuple[int, int, int]]
) -> list[str]:
    """What is held afterwards and was not before."""
    try:
        serving.wait_ready(1 + workers, _SETTLED_S)
    except AssertionError:
        return [f"the cluster is not whole after {_SETTLED_S:.0f} s: {serving.status()['reason']}"]
    found: list[str] = []
    deadline = time.monotonic() + _SETTLED_S
    while time.monotonic() < deadline:
        found = _grown(before, _held(serving, names))
        if not found:
            break
        time.sleep(0.5)
    for name in names:
        found += [f"{name}: {path.name}" for path in serving.workers[name].cache.rglob("*.part")]
    return found


def _grown(before: dict[str, tuple[int, int, int]], after: dict[str, tuple[int, int, int]]) -> list[str]:
    found = []
    for name, (descriptors, threads, resident) in after.items():
        old = before[name]
        if descriptors > old[0] + _MORE_DESCRIPTORS:
            found.append(f"{name}: {descriptors} descriptors, {old[0]} before")
        if threads > old[1] + _MORE_DESCRIPTORS:
            found.append(f"{name}: {threads} threads, {old[1]} before")
        if resident > old[2] + _MORE_BYTES:
            found.append(f"{name}: {resident >> 20} MiB, {old[2] >> 20} before")
    return found


def _print(record: dict[str, Any]) -> None:
    print(
        f"{record['kills']} faults: "
        + ", ".join(f"{count} x {name}" for name, count in record["by_kind"].items())
    )
    print(
        f"{record['answers']} answers with {record['tokens']} tokens, {record['paused_answers']} of them paused; "
        f"{len(record['wrong'])} wrong, {len(record['lost'])} lost, {len(record['left_over'])} left over"
    )
    print("seconds from a fault to the next token (median, p90, most):")
    for kind, took in {"all": record["seconds_to_the_next_token"], **record["seconds_by_kind"]}.items():
        if took:
            print(f"  {kind}: {took['median']}, {took['p90']}, {took['max']}")
    for fault in record["faults"][:20]:
        print(f"FAULT: {fault}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.nemesis",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="?", default="demo", help="[default: demo]")
    parser.add_argument("--tokens", type=int, default=300, help="of an answer [default: 300]")
    parser.add_argument("--kills", type=int, default=100, help="faults [default: 100]")
    parser.add_argument("--seed", type=int, default=1, help="[default: 1]")
    parser.add_argument("--workers", type=int, default=2, help="beside the master [default: 2]")
    parser.add_argument("--clients", type=int, default=4, help="[default: 4]")
    parser.add_argument("--precision", choices=("q8", "q4"), default="q4", help="[default: q4]")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object")
    return parser


if __name__ == "__main__":
    sys.exit(main())
