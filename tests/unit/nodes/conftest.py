"""A master's story for every test that asks for one."""

from collections.abc import Iterator

import pytest

from tests.unit.nodes.stories import Story


@pytest.fixture
def story() -> Iterator[Story]:
    found = Story()
    yield found
    found.master.close()
    found.hub.close()
