import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cluster.packs import Packs, References, split
from tests.cluster.test_streaming import tight
from tests.fakes.cluster import InProcessCluster, SoloLeader
from tests.reference import Reference
from tpiedge.engine.steps import StepLimits
from tpiedge.kernels.kv_format import KVFormat
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.pack.specs import Precision
from tpiedge.wire.control import Finished, PromptScores, Token
from tpiedge.wire.fields import KVPrecision
from tpiedge.wire.requests import GenerationRequest, Sampling

#: TPIEDGE_SCHEDULES=1000 plays so many of each case, chosen anew every time.
SCHEDULES = os.environ.get("TPIEDGE_SCHEDULES")
LOGPROBS = 5
PAGES = 5  # of a request at most
GRAMMAR_S = 30.0


Told = tuple[int, tuple[tuple[int, float], ...]]


@dataclass(frozen=True)
class Arrival:
    """A request, after how many steps it comes, and after how many tokens its caller leaves (0: never). Up to `known`
    tokens of its answer were drawn by a cluster that was lost."""

    request: GenerationRequest
    step: int
    leaves: int = 0
    known: int = 0


class Run:
    def __init__(self, leader: SoloLeader, arrivals: list[Arrival]) -> None:
        self.tokens: dict[str, list[Token]] = {arrival.request.id: [] for arrival in arrivals}
        self.finished: dict[str, Finished] = {}
        self.steps = 0
        waiting = sorted(arrivals, key=lambda arrival: arrival.step)
        self._leaving = {arrival.request.id: arrival.leaves for arrival in arrivals if arrival.leaves}
        self._known = {arrival.request.id: len(arrival.request.answer_ids) for arrival in arrivals}
        self._leader = leader
        while waiting or leader.preparing or not leader.idle:
            while waiting and waiting[0].step <= self.steps:
                leader.submit(waiting.pop(0).request, self._take)
            if leader.idle:
                leader.await_grammar(GRAMMAR_S)
            for finished in leader.step():
                assert isinstance(finished, Finished), finished
                self.finished[finished.request] = finished
            self.steps += 1
            assert self.steps < 5000, "a request starves"

    def _take(self, event: Token | PromptScores) -> None:
        assert isinstance(event, Token)
        seen = self.tokens[event.request]
        assert event.index == self._known[event.request] + len(seen), "a token is lost, or came twice"
        seen.append(event)
        if len(seen) == self._leaving.get(event.request):
            self._leader.cancel(event.request)

    def told(self, request: str) -> list[Told]:
        return [(token.token, token.logprobs) for token in self.tokens[request]]


def page_of(reference: Reference, precision: KVPrecision) -> int:
    return KVFormat(precision, Checkpoint.open(reference.folder).config.head_dim).page_positions


def requests_of(page: int) -> st.SearchStrategy[list[Arrival]]:
    kinds = {kind: tuple(3 + (i * i + 7 * kind) % 50 for i in range(page)) for kind in (0, 1)}

    def arrival(
        pages: list[int],
        some: int,
        own: list[int],
        repeats: int,
        count: int,
        warm: bool,
        step: int,
        leaves: int,
        known: int,
    ) -> Arrival:
        beginning = tuple(token for kind in pages for token in kinds[kind]) + kinds[0][:some]
        prompt = beginning + tuple(own) * repeats
        sampling = Sampling(temperature=1.5 if warm else 0.0, logprobs=LOGPROBS)
        return Arrival(GenerationRequest("", prompt, count, sampling, (), True, True), step, leaves, known)

    one = st.builds(
        arrival,
        pages=st.lists(st.integers(0, 1), max_size=3),
        some=st.sampled_from([0, 1, 5]),
        own=st.lists(st.integers(3, 190), min_size=1, max_size=12),
        repeats=st.integers(1, 4),
        count=st.integers(1, 16),
        warm=st.booleans(),
        step=st.integers(0, 12),
        leaves=st.sampled_from([0, 0, 0, 1, 5]),
        known=st.sampled_from([0, 0, 1, 7]),
    )

    def numbered(arrivals: list[Arrival]) -> list[Arrival]:
        return [
            replace(
                one,
                request=replace(
                    one.request, id=f"r{number}", sampling=replace(one.request.sampling, seed=number)
                ),
            )
            for number, one in enumerate(arrivals)
        ]

    return st.lists(one, min_size=1, max_size=7).map(numbered)


CASES = [
    ("llama-gqa-odd", Precision.Q4, "1", None),
    ("qwen3", Precision.Q8, "2,1", None),
    ("mistral-sliding", Precision.Q4, "1,0:1,3", 0.4),
    ("llama-gqa-odd", Precision.Q8, "1,1,1,1", None),
    ("yi", Precision.F32, "2,1", None),
    ("phi4-mini-turning", Precision.Q4, "2,1", None),
    ("qwen3-moe", Precision.Q4, "2,1", None),
    ("gemma4-a4b", Precision.Q4, "2,1", None),
]


def greedy(arrival: Arrival) -> Arrival:
    sampling = replace(arrival.request.sampling, temperature=0.0)
    return replace(arrival, request=replace(arrival.request, sampling=sampling))


def alike(told: Sequence[Told], expected: Sequence[Told], precision: Precision) -> bool:
    if precision is not Precision.F32:
        return told == expected[: len(told)]
    for (token, logprobs), (other, others) in zip(told, expected, strict=False):
        known = dict(others)
        if any(abs(p - known.get(i, p)) > 1e-4 * max(1.0, abs(p)) for i, p in logprobs):
            return False
        if token != other:
            return abs(known[other] - known[token]) <= 2e-4
    return True


@pytest.mark.parametrize(("name", "precision", "shares", "streamed"), CASES)
def test_batched_answers_equal_answers_computed_alone(
    name: str, precision: Precision, shares: str, streamed: float | None, references: References, packs: Packs
) -> None:
    reference = references(name)
    pack, page = (
        packs(reference, precision),
        page_of(reference, "f32" if precision is Precision.F32 else "bf16"),
    )
    with (
        InProcessCluster(pack, split(reference, "1"), capacity_tokens=PAGES * page) as alone,
        InProcessCluster(
            pack,
            split(reference, shares),
            capacity_tokens=2 * PAGES * page,
            context_tokens=PAGES * page,
            sequences=4,
            speculate=6,
            limits=StepLimits(96, 16),
            placement=None if streamed is None else tight(streamed),
            grain_pages=0 if streamed is None else 1,
        ) as cluster,
    ):

        def told_alone(request: GenerationRequest) -> list[Told]:
            request = replace(request, keep_prefix=False)
            return Run(alone.leader, [Arrival(request, 0)]).told(request.id)

        @settings(
            max_examples=int(SCHEDULES or 8),
            deadline=None,
            derandomize=SCHEDULES is None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(requests_of(page))
        def check(arrivals: list[Arrival]) -> None:
            if precision is Precision.F32:
                arrivals = [greedy(arrival) for arrival in arrivals]
            alones = {arrival.request.id: told_alone(arrival.request) for arrival in arrivals}
            run = Run(cluster.leader, [gone_on(arrival, alones) for arrival in arrivals])
            assert cluster.leader.pages[0] == 0, "pages are held by nobody"
            for arrival in arrivals:
                name = arrival.request.id
                known = len(gone_on(arrival, alones).request.answer_ids)
                expected = alones[name][known:]
                told, finished = run.told(name), run.finished[name]
                assert alike(told, expected, precision)
                assert finished.tokens == known + len(told)
                assert (finished.reason == "cancel") == (len(told) < len(expected))
                assert len(told) >= arrival.leaves or finished.reason != "cancel"

        check()


def gone_on(arrival: Arrival, alones: Mapping[str, list[Told]]) -> Arrival:
    request = arrival.request
    known = min(arrival.known, request.max_tokens - 1)
    answer_ids = tuple(token for token, _ in alones[request.id][:known])
    return replace(arrival, request=replace(request, answer_ids=answer_ids))


def prompt_of(reference: Reference, length: int) -> tuple[int, ...]:
    return (tuple(reference.prompt_ids) * 40)[:length]


@pytest.fixture
def shared(references: References, packs: Packs) -> tuple[Reference, Path]:
    reference = references("llama-gqa-odd")
    return reference, packs(reference, Precision.Q4)


def ask(number: int, prompt: tuple[int, ...], count: int) -> GenerationRequest:
    sampling = Sampling(logprobs=LOGPROBS)
    return GenerationRequest(f"r{number}", prompt, count, sampling, ignore_eos=True, keep_prefix=True)


def test_later_turn_recomputes_at_most_one_page(shared: tuple[Reference, Path]) -> None:
    reference, pack = shared
    with InProcessCluster(
        pack, split(reference, "1"), capacity_tokens=8 * 1280, context_tokens=1280, sequences=8
    ) as cluster:
        texts = {number: (number + 3, *prompt_of(reference, 600)) for number in range(8)}
        for turn in range(3):
            run = Run(cluster.leader, [Arrival(ask(n, text, 20), 0) for n, text in texts.items()])
            for number, text in texts.items():
                finished = run.finished[f"r{number}"]
                if turn:
                    assert len(text) - 40 - finished.cached_tokens <= 512, (
                        "more than a page was computed again"
                    )
                answer = tuple(token.token for token in run.tokens[f"r{number}"])
                texts[number] = (*text, *answer, *prompt_of(reference, 20))


@pytest.mark.fault("H13", "as much is computed as if nobody had asked it")
def test_prefix_cache_is_not_shared_between_clients(
    shared: tuple[Reference, Path],
) -> None:
    reference, pack = shared
    with InProcessCluster(
        pack, split(reference, "1,1"), capacity_tokens=8192, context_tokens=1024, sequences=4
    ) as cluster:
        prompt = prompt_of(reference, 700)
        requests = [replace(ask(number, prompt, 4), scope=scope) for number, scope in enumerate("aabb")]
        run = Run(cluster.leader, [Arrival(one, 0) for one in requests])
        cached = [run.finished[one.id].cached_tokens for one in requests]
        assert cached[0] == cached[2] == 0
        assert min(cached[1], cached[3]) >= 700 - 512
        assert cluster.computed == 4 * (700 + 3) - sum(cached)
        assert len({tuple(run.told(one.id)) for one in requests}) == 1
        late = replace(ask(4, prompt, 4), scope="c")
        run = Run(cluster.leader, [Arrival(late, 0)])
        assert run.finished[late.id].cached_tokens == 0
