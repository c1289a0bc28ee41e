"""Without the native side there is no switch, and it says so."""

import importlib.machinery
from collections.abc import Iterator

import pytest

from tpiedge.errors import UserError
from tpiedge.lab.testbed.switch.library import switch_library


@pytest.fixture
def _fresh() -> Iterator[None]:
    switch_library.cache_clear()
    yield
    switch_library.cache_clear()


@pytest.mark.usefixtures("_fresh")
def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.machinery, "EXTENSION_SUFFIXES", [])
    with pytest.raises(UserError, match=r"needs a C\+\+ compiler when tpiedge is installed.* install g\+\+"):
        switch_library()
