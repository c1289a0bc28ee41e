"""The native side of the transport (`native/`): finding it, and the libzmq that it may call.

It works on pyzmq's own sockets, so it must call the very libzmq that pyzmq calls. Where that is not certain - another
system than Linux, libzmq inside pyzmq's extension, a second libzmq in the process - or where it was not built, or is
switched off, there is none, and Python does the same step by step. The reason is in the debug log. What packs tensors
for the wire needs no libzmq, and is there wherever it was built.

TPIEDGE_FAST_LINK=0 switches it off, but for the packing; TPIEDGE_NATIVE=0 all of it, together with the kernels.
"""

import ctypes
import functools
import logging
import os
import sys
from pathlib import Path
from typing import Final

import zmq
import zmq.backend

from tpiedge.native_code import Signatures, find_library, load_library
from tpiedge.wire.fields import SummandPrecision

PRECISIONS: Final[dict[SummandPrecision, int]] = {"f32": 0, "bf16": 1, "int8": 2, "i32": 3}
"""The numbering of Precision in native/wire.h."""

_ABI: Final = 5
# As `Zmq` in native/message.h.
_FUNCTIONS: Final = ("init", "init_size", "copy", "data", "size", "more", "gets", "send", "recv", "close")

_int, _size, _pointer, _bytes = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p
_SIGNATURES: Final[Signatures] = {
    "tpiedge_wire_bytes": ([_size, _size, _size], _size),
    "tpiedge_wire_encode": ([_size, _size, _size, _pointer, _pointer], None),
    "tpiedge_wire_decode": ([_size, _size, _size, _pointer, _pointer], None),
    "tpiedge_reducer_open": ([_pointer, _pointer], _pointer),
    "tpiedge_reducer_add_peer": ([_pointer, _pointer, _bytes, _size, _bytes], _int),
    "tpiedge_reducer_run": ([_pointer, _bytes, _pointer], _int),
    "tpiedge_reducer_received": ([_pointer], _size),
    "tpiedge_reducer_view": ([_pointer, _size, _pointer], None),
    "tpiedge_reducer_release": ([_pointer], None),
    "tpiedge_reducer_close": ([_pointer], None),
}

_log = logging.getLogger(__name__)


class ReducePlan(ctypes.Structure):
    """What the all-reduces of one shape have in common, as in native/interface.cpp."""

    _fields_ = (
        ("combine", _size),
        ("rank", _size),
        ("precision", _size),
        ("rows", _size),
        ("columns", _size),
        ("sum", _pointer),
        ("header", _bytes),
        ("place_at", _size),
        ("place_bytes", _size),
        ("changes", _pointer),
        ("seen", _size),
    )


class View(ctypes.Structure):
    """A received message, as in native/interface.cpp."""

    _fields_ = (
        ("socket", _pointer),
        ("route", _pointer),
        ("route_bytes", _size),
        ("frame", _pointer),
        ("frame_bytes", _size),
        ("user", _bytes),
        ("descriptor", _bytes),
        ("more", _size),
    )


class TransportLibrary:
    """The loaded library, `dll`, and the functions of libzmq that it is to call."""

    def __init__(self, dll: ctypes.CDLL, zmq_functions: list[int]) -> None:
        self.dll = dll
        self.zmq = (_pointer * len(zmq_functions))(*zmq_functions)


def transport_library() -> TransportLibrary | None:
    """None where there is none, see above."""
    dll = None if os.environ.get("TPIEDGE_FAST_LINK") == "0" else packing_library()
    return None if dll is None else _with_libzmq(dll)


def packing_library() -> ctypes.CDLL | None:
    """What packs tensors, of `native/wire.h`."""
    return None if os.environ.get("TPIEDGE_NATIVE") == "0" else _loaded()


@functools.cache
def _loaded() -> ctypes.CDLL | None:
    try:
        path = find_library(Path(__file__).parent)
        return None if path is None else load_library(path, "tpiedge_transport_abi", _ABI, _SIGNATURES)
    except (OSError, AttributeError) as error:
        _log.debug("no native side of the transport: %s", error)
        return None


@functools.cache
def _with_libzmq(dll: ctypes.CDLL) -> TransportLibrary | None:
    try:
        return TransportLibrary(dll, _zmq_functions())
    except (OSError, AttributeError) as error:
        _log.debug("all-reduces step by step: %s", error)
        return None


def _zmq_functions() -> list[int]:
    """Addresses of _FUNCTIONS in the libzmq that pyzmq's extension is bound to. Raises OSError where that is not
    certain."""
    if not sys.platform.startswith("linux"):
        raise OSError(f"which libzmq pyzmq uses is not known on {sys.platform}")
    extension = sys.modules[zmq.backend.Socket.__module__].__file__
    # The linker binds an extension to the global scope first and then to its own dependencies, where dlsym looks that
    # is given its handle. RTLD_NOLOAD: never a second copy.
    pyzmq = ctypes.CDLL(extension, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    global_scope = ctypes.CDLL(None)
    addresses = [_address_of(f"zmq_msg_{name}", pyzmq, global_scope) for name in _FUNCTIONS]
    parts = [ctypes.c_int() for _ in range(3)]
    pyzmq.zmq_version(*map(ctypes.byref, parts))
    if tuple(part.value for part in parts) != zmq.zmq_version_info():
        raise OSError("pyzmq names another version of libzmq")
    return addresses


def _address_of(name: str, pyzmq: ctypes.CDLL, global_scope: ctypes.CDLL) -> int:
    address = ctypes.cast(getattr(pyzmq, name), _pointer).value
    other = getattr(global_scope, name, None)
    if not address or (other is not None and ctypes.cast(other, _pointer).value != address):
        raise OSError(f"more than one {name}")
    return address
