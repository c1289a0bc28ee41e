"""One engine and one image for all tests that run containers: building it takes minutes."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from docker.errors import DockerException

from tests.deploy.engine import ROOT, Engine, base_image, build_base, running_engine

IMAGE = "tpiedge-test/tpiedge"


@pytest.fixture(autouse=True)
def _leak_check() -> None:
    """Replaces the check of each test: containers belong to the engine, which may be a child of this process. Modules
    end their containers, `running_engine` the engine."""


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """A folder on a real disk with a path short enough for sockets."""
    made = Path(tempfile.mkdtemp(prefix="tpiedge-", dir="/var/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="session")
def engine(folder: Path) -> Iterator[Engine]:
    (folder / "engine").mkdir()
    with running_engine(folder / "engine") as engine:
        yield engine


@pytest.fixture(scope="session")
def image(engine: Engine, folder: Path) -> Iterator[str]:
    """Built as the compose file builds it; images that were not there before are removed, layers included."""
    with engine.client() as client:
        before = {tag for one in client.images.list() for tag in one.tags}
    try:
        base = base_image(engine, folder)
        build, torch_index = build_base(engine, base, folder)
        arguments = {"BASE": base, "BUILD_BASE": build, "TORCH_INDEX": torch_index}
        with engine.client() as client:
            client.images.build(
                path=str(ROOT),
                dockerfile="docker/Dockerfile",
                buildargs=arguments,
                tag=IMAGE,
                rm=True,
                forcerm=True,
            )
        yield IMAGE
    finally:
        _remove_images(engine, before)


def _remove_images(engine: Engine, before: set[str]) -> None:
    with engine.client() as client:
        for tag in {tag for one in client.images.list() for tag in one.tags} - before:
            with suppress(DockerException):
                client.images.remove(tag, force=True)
        client.images.prune({"dangling": True, "label": ["org.tpiedge.stage=build"]})
