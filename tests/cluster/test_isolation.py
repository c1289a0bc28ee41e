"""Conversations that begin alike and share pages never see a token of each other."""

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tests.cluster.packs import split
from tests.cluster.test_batching import LOGPROBS, PAGES, Arrival, Run, page_of
from tests.reference import Reference
from tpiedge.pack.layout import Precision
from tpiedge.testing.cluster import InProcessCluster
from tpiedge.wire.requests import GenerationRequest, Sampling

CONVERSATIONS = 8
#: TPIEDGE_ISOLATION_REQUESTS=10000 asks for as many as a day of a family.
REQUESTS = int(os.environ.get("TPIEDGE_ISOLATION_REQUESTS", "150"))


class Conversations:
    """What eight people say at random. All begin with one text, every other pair goes on alike for a while."""

    def __init__(self, page: int, seed: int) -> None:
        self._draws = random.Random(seed)
        self._most = PAGES * page - 20
        common = self._words(page + page // 2)
        pairs = [self._words(page) for _ in range(CONVERSATIONS // 2)]
        self._beginnings = [common + (pairs[n // 2] if n % 4 < 2 else ()) for n in range(CONVERSATIONS)]
        self._texts = list(self._beginnings)
        self._asked = 0

    def round(self) -> tuple[list[int], list[Arrival]]:
        """(Who speaks, what): some of them, at about the same time; some leave before the end."""
        draws = self._draws
        who = draws.sample(range(CONVERSATIONS), draws.randint(1, CONVERSATIONS))
        return who, [self._speak(number) for number in who]

    def answered(self, number: int, request: GenerationRequest, answer: Sequence[int]) -> None:
        """The conversation goes on with it; one that is long begins again."""
        self._texts[number] = request.prompt_ids + tuple(answer)
        if len(self._texts[number]) > self._most - 40 or self._draws.random() < 0.1:
            self._texts[number] = self._beginnings[number]

    def _speak(self, number: int) -> Arrival:
        draws = self._draws
        prompt = self._texts[number] + self._words(draws.randint(1, 30))
        sampling = Sampling(
            temperature=draws.choice([0.0, 1.5]), seed=draws.getrandbits(31), logprobs=LOGPROBS
        )
        self._asked += 1
        request = GenerationRequest(f"r{self._asked}", prompt, draws.randint(1, 8), sampling, (), True, True)
        return Arrival(request, draws.randint(0, 4), draws.choice([0, 0, 0, 2]))

    def _words(self, count: int) -> tuple[int, ...]:
        return tuple(self._draws.randint(3, 190) for _ in range(count))


def test_no_conversation_sees_another_s_pages(
    references: Callable[[str], Reference], packs: Callable[..., Path]
) -> None:
    """Too few pages for all of them, so that pages are evicted and used again. Every answer, its log probabilities too,
    is that of a node which serves the request alone and keeps nothing."""
    reference = references("llama-gqa-odd")
    pack, page = packs(reference, Precision.Q4), page_of(reference, "bf16")
    conversations = Conversations(page, seed=19)
    with (
        InProcessCluster(pack, split(reference, "1"), capacity_tokens=PAGES * page) as alone,
        InProcessCluster(
            pack,
            split(reference, "2,1"),
            capacity_tokens=3 * PAGES * page,
            context_tokens=PAGES * page,
            sequences=5,
            speculate=4,
        ) as cluster,
    ):
        asked = cached = 0
        while asked < REQUESTS:
            who, arrivals = conversations.round()
            asked += len(arrivals)
            run = Run(cluster.leader, arrivals)
            assert cluster.leader.pages[0] == 0
            for number, arrival in zip(who, arrivals, strict=True):
                request = replace(arrival.request, keep_prefix=False)
                expected = Run(alone.leader, [Arrival(request, 0)]).told(request.id)
                told = run.told(request.id)
                assert told == expected[: len(told)], request.id
                assert len(told) == len(expected) or run.finished[request.id].reason == "cancel"
                cached += run.finished[request.id].cached_tokens
                conversations.answered(number, request, [token for token, _ in told])
        assert cached > asked * page, "hardly a page was shared: nothing was tested"
