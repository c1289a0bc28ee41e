"""A testbed of its own for each test that wants one."""

import pytest

from tests.process.lab.testbed.beds import bed_name, left_of, removed


@pytest.fixture
def bed():
    """The name of a testbed that is not there yet. The test fails if something of it is left at its end."""
    with removed(bed_name()) as name:
        yield name
    assert left_of(name) == []
