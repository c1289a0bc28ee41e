"""Plans of random models and machines, down to the last bit of their times."""

import hashlib
from collections.abc import Iterator
from random import Random

import pytest

from tests.unit.planner.models import alike
from tpiedge.planner.capacity import allocate
from tpiedge.planner.needs import NODE_BASE_BYTES, Infeasible, LayerShape, ModelFacts
from tpiedge.planner.prediction import MachineFacts
from tpiedge.planner.solve import ShareWeight
from tpiedge.units import MIB
from tpiedge.wire.fields import Keeping

#: Machines -> the hash of 40 plans.
GOLDEN = {
    1: "51596a20d9c6d2fa",
    2: "976c8d838205507d",
    3: "f6b01bd3badfa99b",
    4: "eb3458189f1310b0",
    5: "665a14393a765fd2",
    6: "954b19825841a9ea",
    7: "09f720ad4c509a9b",
    8: "538929928a7300d5",
}


def _model(rng: Random) -> ModelFacts:
    layers, kv_heads = rng.choice((1, 3, 24, 80)), rng.choice((1, 2, 3, 8))
    shape = LayerShape(kv_heads * rng.choice((1, 2, 5)), kv_heads, rng.choice((1, 7, 64, 172)), layers)
    head, tile = rng.choice((4096, MIB // 2)), rng.choice((12288, MIB // 3))
    tiles = tile, tile, tile + 4096
    return alike(
        layers,
        shape,
        ((head, head), (head, head), tiles),
        tiles if rng.random() < 0.5 else (4096, 4096, 8192),
        (rng.choice((8192, 65536)), 64),
        resident_bytes=layers * rng.choice((0, 4096)),
        head_bytes=rng.choice((0, 30 * MIB, 512 * MIB)),
        head_tile_bytes=rng.choice((0, 16 * MIB)),
        capacity_tokens=rng.choice((10, 4000, 30000)),
        row_bytes=rng.choice((0, 8192)),
    )


def _machine(rng: Random, name: str, whole: int) -> MachineFacts:
    memory = NODE_BASE_BYTES + 128 * MIB + int(whole * rng.random())
    keeping = [
        Keeping(),
        Keeping(),
        Keeping("all"),
        Keeping("none"),
        Keeping("auto", 3),
        Keeping("auto", 0, MIB),
    ]
    return MachineFacts(
        rng.choice((0.0, 1e9, 3e9, 2e10)),
        rng.choice((None, memory, memory)),
        rng.choice((None, None, None, int(whole * rng.random()))),
        rng.choice((None, 1e8, 2e9)),
        rng.choice(keeping),
        name=name,
        round_trip_s=rng.choice((0.0, 2e-4, 3e-3)),
        link_bytes_per_s=rng.choice((None, 1e8)),
    )


def _plans(count: int) -> Iterator[object]:
    rng = Random(count)
    for _ in range(40):
        model = _model(rng)
        whole = sum(model.whole_bytes) + model.head_bytes
        machines = [_machine(rng, f"w-{at}", whole) for at in range(count)]
        weights = [ShareWeight(rng.randint(0, 2) + (not at), rng.randint(1, 3)) for at in range(count)]
        given = weights if rng.random() < 0.1 else None
        found = allocate(model, machines, given, rng.choice((0, 0, count // 2)))
        if isinstance(found, Infeasible):
            yield None
            continue
        plan = found.plan
        yield [(share.along("attention"), share.along("ffn")) for share in plan.shares]
        for need in plan.needs:
            weight = need.weights
            yield (
                need.weight_bytes,
                need.kv_bytes,
                need.streamed_bytes,
                weight.nbytes,
                weight.ring_bytes,
                weight.pin,
            )
        yield plan.layers_s.hex(), plan.head_s.hex(), plan.reduce_s.hex()
        yield found.members, [(at, one.kind) for at, one in sorted(found.spare.items())]


@pytest.mark.parametrize("count", GOLDEN)
def test_plans_of_models_with_layers_alike_are_golden(count: int) -> None:
    assert hashlib.sha256(repr([*_plans(count)]).encode()).hexdigest()[:16] == GOLDEN[count]
