from collections.abc import Callable, Sequence

import pytest

from tests.cluster.alone import alone
from tests.cluster.packs import packs
from tests.fakes import cluster as clusters
from tpiedge.kernels.linear import Arithmetic, Linear
from tpiedge.kernels.shared_library import KernelLibrary, kernel_library

__all__ = ["alone", "packs"]


@pytest.fixture
def several_sets(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives nodes made afterwards instruction sets and numbers of threads in turn."""

    def choose(sets: Sequence[str], threads: Sequence[int] = (1,)) -> None:
        usual = kernel_library()
        assert usual is not None
        made = iter(range(1 << 30))

        class Chosen(Linear):
            @classmethod
            def create(cls, arithmetic: Arithmetic, _threads: int) -> "Chosen":
                at = next(made)
                library = KernelLibrary(usual.dll, sets[at % len(sets)])
                return cls(arithmetic, threads[at % len(threads)], library)

        monkeypatch.setattr(clusters, "Linear", Chosen)

    return choose
