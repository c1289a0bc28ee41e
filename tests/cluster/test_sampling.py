from collections.abc import Callable

import pytest

from tests.cluster.packs import Packs, References, split
from tests.fakes.cluster import InProcessCluster
from tests.reference import Reference
from tpiedge.collectives.communicator import Route
from tpiedge.wire.control import Token
from tpiedge.wire.requests import GenerationRequest, Sampling

NAMES = ["llama-gqa-odd", "qwen3"]
#: (shares, by which collective): two to six nodes, uneven ones, and such as help with the FFN or attention alone.
PLANS = [
    ("3,1", "mesh"),
    ("1,0:1", "star"),
    ("1,5,2", "two-shot"),
    ("1:0,0:1,2", "mesh"),
    ("1,0:3,1,0:1,1", "star"),
    ("1,1,1,1,1,1", "two-shot"),
]
TOKENS = 12
SAMPLINGS = (
    *(Sampling(temperature=1.0, seed=seed) for seed in range(3)),
    Sampling(temperature=0.7, top_k=40, top_p=0.95, seed=4),
    Sampling(temperature=1.5, min_p=0.02, repetition_penalty=1.1, presence_penalty=0.2, seed=2**63),
)
Answers = list[list[int]]


def drawn(cluster: InProcessCluster, reference: Reference) -> Answers:
    requests = [
        GenerationRequest(f"r-{number}", tuple(reference.prompt_ids), TOKENS, sampling, ignore_eos=True)
        for number, sampling in enumerate(SAMPLINGS)
    ]
    return [
        [event.token for event in cluster.generate(request) if isinstance(event, Token)]
        for request in requests
    ]


@pytest.fixture(scope="module")
def alone(references: References, packs: Packs) -> Callable[[str], Answers]:
    known: dict[str, Answers] = {}

    def find(name: str) -> Answers:
        if name not in known:
            reference = references(name)
            with InProcessCluster(packs(reference), split(reference, "1")) as cluster:
                known[name] = drawn(cluster, reference)
        return known[name]

    return find


@pytest.mark.parametrize(
    ("name", "shares", "way"), [(NAMES[at % len(NAMES)], *plan) for at, plan in enumerate(PLANS)]
)
def test_f32_sampling_draws_the_same_tokens_on_any_split(
    name: str, shares: str, way: str, references: References, packs: Packs, alone: Callable[[str], Answers]
) -> None:
    reference = references(name)
    route = Route(small=way, bulk=way)  # type: ignore[arg-type]
    with InProcessCluster(packs(reference), split(reference, shares), route=route) as cluster:
        assert drawn(cluster, reference) == alone(name)
