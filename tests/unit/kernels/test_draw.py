import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tpiedge.kernels
from tests.unit.kernels.instruction_sets import AVAILABLE
from tpiedge.kernels import draw as module
from tpiedge.kernels.draw import Filters, Scores, draw, draw_by_numpy, likeliest, mass_bits, survivors
from tpiedge.kernels.shared_library import KernelLibrary, find_library, load

ALMOST_ONE = 1 - 2.0**-53
TINY = 5e-324

VOCABULARIES = st.integers(1, 3000) | st.sampled_from([1, 2, 63, 64, 65, 128, 2047, 2048, 4096, 32_000])
TEMPERATURES = st.sampled_from([TINY, 1e-300, 1e-3, 0.3, 0.8, 1.0, 2.5, 100.0, 1e308])
TOP_PS = st.sampled_from([TINY, 1e-9, 0.5, 0.9, 0.999, ALMOST_ONE, 1.0]) | st.floats(1e-9, 1)
MIN_PS = st.sampled_from([0.0, TINY, 1e-9, 0.05, 0.999, ALMOST_ONE]) | st.floats(0, ALMOST_ONE)
NUMBERS = st.sampled_from([0.0, TINY, 0.5, ALMOST_ONE]) | st.floats(0, ALMOST_ONE)


@st.composite
def made_scores(draw_from: st.DrawFn, vocabularies: st.SearchStrategy[int]) -> Scores:
    rng = np.random.default_rng(draw_from(st.integers(0, 2**32)))
    scores = rng.standard_normal(draw_from(vocabularies))
    scores *= draw_from(st.sampled_from([0.0, 1e-40, 1e-3, 1.0, 4.0, 100.0, 1e37]))
    if draw_from(st.booleans()):
        scores = np.rint(scores)  # many equals, zeros of both signs among them
    masked = rng.random(len(scores)) < draw_from(st.sampled_from([0.0, 0.0, 0.5, 0.999]))
    masked[rng.integers(len(scores))] = False
    return np.where(masked, -np.inf, scores).astype(np.float32)


@st.composite
def made_filters(draw_from: st.DrawFn, vocab: int) -> Filters:
    near = [0, 1, 2, 40, max(vocab // 64, 1), max(vocab - 1, 0), vocab, vocab + 1, 2**32 - 1]
    k = draw_from(st.sampled_from(near) | st.integers(0, vocab))
    return Filters(draw_from(TEMPERATURES), k, draw_from(TOP_PS), draw_from(MIN_PS))


def native_library(isa: str) -> KernelLibrary:
    path = find_library(Path(tpiedge.kernels.__path__[0]))
    assert path is not None
    return KernelLibrary(load(path), isa)


def around(border: float) -> Iterator[float]:
    for number in (math.nextafter(border, 0), border, math.nextafter(border, 2)):
        yield min(number, ALMOST_ONE)


def borders(scores_V: Scores, filters: Filters, at: float) -> Iterator[float]:
    _, masses = survivors(scores_V, filters)
    cumulative = np.cumsum(masses)
    yield from around(float(cumulative[int(at * len(masses))]) / float(cumulative[-1]))


def on_borders(scores_V: Scores, filters: Filters, at: float) -> Iterator[Filters]:
    ids, masses = survivors(scores_V, replace(filters, top_p=1.0, min_p=0.0))
    order = np.argsort(-scores_V[ids], kind="stable")
    place, sums = int(at * len(ids)), np.cumsum(masses[order])
    for top_p in around(float(sums[place]) / float(sums[-1])):
        yield replace(filters, top_p=max(top_p, TINY), min_p=0.0)
    for min_p in around(float(masses[order[place]]) / float(masses.max())):
        yield replace(filters, top_p=1.0, min_p=min_p)


def use(monkeypatch: pytest.MonkeyPatch, library: KernelLibrary | None) -> None:
    monkeypatch.setattr(module, "kernel_library", lambda: library)


def assert_alike(isa: str, scores_V: Scores, filters: Filters, numbers: Iterable[float]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        use(patch, native_library(isa))
        for number in numbers:
            assert draw(scores_V, filters, number) == draw_by_numpy(scores_V, filters, number)


@pytest.mark.parametrize("isa", [isa for isa in AVAILABLE if isa in ("portable", "avx2", "neon")])
class TestNative:
    @settings(deadline=None, max_examples=200)
    @given(st.data(), made_scores(VOCABULARIES), st.floats(0, ALMOST_ONE), NUMBERS)
    def test_draws_what_numpy_draws(
        self, isa: str, data: st.DataObject, scores_V: Scores, at: float, number: float
    ) -> None:
        filters = data.draw(made_filters(len(scores_V)))
        assert_alike(isa, scores_V, filters, (number, *borders(scores_V, filters, at)))

    @settings(deadline=None)
    @given(st.data(), made_scores(st.integers(1, 8) | VOCABULARIES), st.floats(0, ALMOST_ONE))
    def test_keeps_what_numpy_keeps(self, isa: str, data: st.DataObject, scores_V: Scores, at: float) -> None:
        for filters in on_borders(scores_V, data.draw(made_filters(len(scores_V))), at):
            numbers = (0.0, *borders(scores_V, filters, 0.0), *borders(scores_V, filters, ALMOST_ONE))
            assert_alike(isa, scores_V, filters, numbers)

    def test_draws_every_survivor_at_its_share(self, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
        scores_V = np.random.default_rng(3).standard_normal(1003).astype(np.float32)
        filters = Filters(0.8, 400, 0.9, 0.02)
        ids, masses = survivors(scores_V, filters)
        assert 50 < len(ids) < 300
        use(monkeypatch, native_library(isa))
        sums = [0, *np.cumsum(masses).tolist()]
        drawn = [draw(scores_V, filters, (low + high) / 2 / sums[-1]) for low, high in pairwise(sums)]
        assert drawn == ids.tolist()


class TestMasses:
    def test_masses_of_a_whole_vocabulary_fit_in_62_bits(self) -> None:
        for vocab in {1, 2, 1 << 22, *(2**n + by for n in range(1, 22) for by in (-1, 0, 1))}:
            assert vocab << mass_bits(vocab) < 1 << 62
            assert vocab < 2048 or vocab << mass_bits(vocab) >= 1 << 61

    def test_too_unlikely_tokens_have_no_mass(self) -> None:
        scores_V = np.array([0, -36, -math.inf, 0], np.float32)
        _, masses = survivors(scores_V, Filters(1.0))
        assert masses.tolist() == [2**50, 0, 0, 2**50]


class TestNumpy:
    def test_numpy_draws_never_change(self) -> None:
        """A change here changes every user's answers for a given seed."""
        scores_V = (np.arange(1000) * 7919 % 1000 / 128).astype(np.float32)
        tenths = [tenth / 10 for tenth in range(10)]
        drawn = [draw_by_numpy(scores_V, Filters(0.8, 300, 0.9, 0.01), number) for number in tenths]
        assert drawn == [1, 101, 210, 298, 408, 507, 605, 704, 804, 903]


def test_likeliest_gives_the_top_tokens_and_log_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, None)
    scores_V = np.random.default_rng(1).standard_normal(32_000).astype(np.float32) * 4
    ids, log_total = likeliest(scores_V, 3)
    assert ids == np.argsort(-scores_V, kind="stable")[:3].tolist()
    assert log_total == pytest.approx(float(np.log(np.exp(scores_V.astype(np.float64)).sum())), abs=1e-9)
