"""A cluster of a master, an honest worker, and now and then an imposter."""

from collections.abc import Callable, Iterator

import pytest

from tests.process.imposter.imposter import SLOW
from tests.process.imposter.imposter_process import ImposterProcess
from tests.process.serving.conftest import _leak_check, clusters, exact, expected  # noqa: F401
from tests.process.serving.serving import Serving


@pytest.fixture(scope="module")
def cluster(clusters: Callable[..., Serving]) -> Serving:  # noqa: F811
    """All are so slow, as they say, that three machines are better than two."""
    cluster = clusters("--min-workers", 1)
    cluster.start_master()
    cluster.start_worker("ann", bytes_per_s=SLOW)
    cluster.wait_ready(2)
    return cluster


@pytest.fixture
def outsider(cluster: Serving) -> Iterator[ImposterProcess]:
    """It is to be started by the test. Each one has a key of its own, so that no quarantine is inherited."""
    cluster.wait_ready(2)
    (pack,) = (cluster.workers["ann"].cache / "shards" / "packs").iterdir()
    imposter = ImposterProcess(cluster.token(), pack.name)
    try:
        yield imposter
        assert imposter.failure is None
    finally:
        imposter.close()


@pytest.fixture
def imposter(cluster: Serving, outsider: ImposterProcess) -> ImposterProcess:
    """It has a part of the plan."""
    outsider.start()
    cluster.wait_ready(3)
    return outsider


@pytest.fixture
def fenced(
    cluster: Serving,
    outsider: ImposterProcess,
    exact: Callable[[Serving], None],  # noqa: F811
) -> Callable[[str], None]:
    """Fails unless the imposter is left out for these words, and the others answer as ever."""

    def check(words: str) -> None:
        cluster.wait_ready(2)
        # One that was cut comes back first.
        status = cluster.wait_until(
            lambda status: any(
                node["state"] == "left out"
                for node in status["nodes"]
                if outsider.name in (node["host"], node["name"])
            )
        )
        nodes = {node["host"] or node["name"]: node for node in status["nodes"]}
        assert words in nodes[outsider.name]["why"]
        assert nodes["ann"]["rank"] == 1
        exact(cluster)

    return check
