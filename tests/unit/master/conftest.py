"""A master's story for every test that asks for one."""

from collections.abc import Iterator

import pytest

from tests.unit.master.stories import SERVED, Story


@pytest.fixture
def story(request: pytest.FixtureRequest) -> Iterator[Story]:
    found = Story(getattr(request, "param", SERVED))
    yield found
    found.master.close()
    found.hub.close()


@pytest.fixture
def trio(story: Story) -> Story:
    for name in ("w-1", "w-2"):
        story.join(name)
    story.settle()
    assert story.members() == ("master", "w-1", "w-2")
    return story
