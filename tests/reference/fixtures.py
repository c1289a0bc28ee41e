"""The fixture `references`: each case is built and run once per session, when it is first asked for."""

from collections.abc import Callable

import pytest

from tests.reference.cases import case
from tests.reference.huggingface import Reference, reference

__all__ = ["references"]


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Reference]:
    """Case name -> its Reference."""
    known: dict[str, Reference] = {}

    def find(name: str) -> Reference:
        if name not in known:
            known[name] = reference(case(name), tmp_path_factory.mktemp("reference") / name)
        return known[name]

    return find
