"""What a node keeps within a limit: a table of limits for one small pack."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tpiedge.memory.sweep import Sweep
from tpiedge.pack.dtypes import STORED
from tpiedge.pack.layout import Precision
from tpiedge.pack.random_weights import RandomSource
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import NodeShare, Share
from tpiedge.pack.specs import BlobSpec, MatrixSpec, ModelSpec
from tpiedge.pack.writer import write_pack
from tpiedge.planner.solve import Infeasible, NodeNeed
from tpiedge.planner.streaming import Keeping, held

SHARE = NodeShare(Share(0, 4), Share(0, 2))
BASE = 1_000_000
KV = 50_000


@pytest.fixture
def pack(tmp_path: Path) -> Pack:
    """Four layers of a 128 KB matrix each for q, k, v, o, gate, up and down."""
    heads = dict.fromkeys(("q", "k", "v", "o"), (128, 32))
    shapes = heads | dict.fromkeys(("gate", "up", "down"), (128, 64))

    def layer(at: int) -> BlobSpec:
        return BlobSpec(
            tuple(MatrixSpec(name, f"{at}.{name}", rows, 256, unit) for name, (rows, unit) in shapes.items())
        )

    embedding = BlobSpec((MatrixSpec("embedding", "embedding", 128, 256, 64),))
    spec = ModelSpec(embedding, tuple(map(layer, range(4))), BlobSpec(), {})
    write_pack(
        spec, RandomSource.for_spec(1, spec, STORED[Precision.F32]), Precision.F32, tmp_path / "pack", 4
    )
    return Pack.open(tmp_path / "pack")


@pytest.fixture
def fit(pack: Pack) -> Callable[..., NodeNeed | Infeasible]:
    """As `held` for rank 1, with so many bytes for weights."""
    everything = Sweep.of(pack, SHARE, False).nbytes

    def fit(nbytes: int | None, **keeping: object) -> NodeNeed | Infeasible:
        need = NodeNeed(everything, KV, BASE)
        limit = None if nbytes is None else nbytes + KV + BASE
        return held(pack, 1, SHARE, need, limit, Keeping(**keeping))  # type: ignore[arg-type]

    return fit


@pytest.mark.parametrize("nbytes", [None, 28 * 131072, 30 * 131072])
def test_what_fits_stays(fit: Callable[..., NodeNeed], nbytes: int | None) -> None:
    need = fit(nbytes)
    assert (need.weight_bytes, need.weights.pin) == (28 * 131072, "auto")


@pytest.mark.parametrize("matrices", [6, 9, 14, 27])
def test_what_does_not_fit_streams_within_the_limit(fit: Callable[..., NodeNeed], matrices: int) -> None:
    need = fit(matrices * 131072)
    assert need.weights.nbytes == matrices * 131072
    assert 5 * 131072 <= need.weight_bytes <= matrices * 131072


def test_more_memory_never_keeps_less(fit: Callable[..., NodeNeed]) -> None:
    kept = [fit(matrices * 131072).weight_bytes for matrices in range(5, 29)]
    assert kept == sorted(kept)


@pytest.mark.parametrize("keeping", [{"pin": "all"}, {"window_bytes": 20 * 131072}, {"window_blocks": 4}])
def test_what_is_wanted_and_too_much_is_refused_with_the_least(
    fit: Callable[..., NodeNeed | Infeasible], keeping: dict[str, object]
) -> None:
    refusal = fit(8 * 131072, **keeping)
    assert isinstance(refusal, Infeasible)
    assert "node 1 needs at least" in refusal.reason
    assert "KV cache 50.0 kB, program 1.0 MB) but may use 2.1 MB" in refusal.reason


def test_a_window_larger_than_the_model_is_the_model(fit: Callable[..., NodeNeed]) -> None:
    need = fit(None, pin="none", window_bytes=1 << 40)
    assert need.weights.ring_bytes == need.weight_bytes == 28 * 131072
