"""Where the native call is to be had, and where it is not."""

import ctypes
import sys

import pytest

from tests.contract.fast_link.cluster import needs_native
from tpiedge.transport import native_library

pytestmark = needs_native


@pytest.mark.parametrize("variable", ["TPIEDGE_NATIVE", "TPIEDGE_FAST_LINK"])
def test_it_can_be_switched_off(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "0")
    assert native_library.transport_library() is None
    monkeypatch.setenv(variable, "1")
    assert native_library.transport_library() is not None


def test_no_libzmq_is_called_that_might_be_another() -> None:
    other = type("Library", (), {"zmq_msg_send": ctypes.CDLL(None).getpid})()
    extension = ctypes.CDLL(sys.modules["zmq.backend.cython._zmq"].__file__)
    with pytest.raises(Exception, match="more than one zmq_msg_send"):
        native_library._address_of("zmq_msg_send", extension, other)
