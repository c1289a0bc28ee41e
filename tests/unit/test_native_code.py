"""The package's native code is built and can be loaded: without it many tests have fewer cases, and nothing says so."""

from collections.abc import Callable

import pytest

from tpiedge.errors import UserError
from tpiedge.kernels.shared_library import kernel_library
from tpiedge.lab.testbed.switch_native import switch_library
from tpiedge.transport.native_library import transport_library


@pytest.mark.parametrize(
    "load", [kernel_library, transport_library, switch_library], ids=lambda load: load.__name__
)
def test_native_library_loads(load: Callable[[], object]) -> None:
    try:
        found = load()
    except UserError as error:
        pytest.skip(f"native: {error}")
    if found is None:
        pytest.skip("native: not built or not fit for this machine; make setup says why")
