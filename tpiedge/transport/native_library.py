"""Finds the native side of the transport (`native/`) and pyzmq's own libzmq.

Python code takes over unless both are found with certainty. With TPIEDGE_FAST_LINK=0, native code only packs tensors
for the wire. TPIEDGE_NATIVE=0 switches off packing and the kernels, too.
"""

import ctypes
import functools
import logging
import os
import sys
from pathlib import Path
from typing import Final, NamedTuple

import zmq
import zmq.backend

from tpiedge.native_code import Signatures, find_library, load_library
from tpiedge.wire.fields import SummandPrecision

PRECISIONS: Final[dict[SummandPrecision, int]] = {"f32": 0, "bf16": 1, "int8": 2, "i32": 3}
"""Numbers of the precisions in native/wire.h."""

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
    """Parameters of all-reduces of one shape, as in native/interface.cpp."""

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


class TransportLibrary(NamedTuple):
    dll: ctypes.CDLL
    zmq: "ctypes.Array[ctypes.c_void_p]"


def transport_library() -> TransportLibrary | None:
    dll = None if os.environ.get("TPIEDGE_FAST_LINK") == "0" else packing_library()
    try:
        return None if dll is None else TransportLibrary(dll, _zmq_functions())
    except (OSError, AttributeError) as error:
        _log.debug("all-reduces step by step: %s", error)
        return None


def packing_library() -> ctypes.CDLL | None:
    """Returns the library for packing, which needs no libzmq."""
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
def _zmq_functions() -> "ctypes.Array[ctypes.c_void_p]":
    """Returns the addresses of _FUNCTIONS in pyzmq's libzmq. Raises OSError if uncertain."""
    if not sys.platform.startswith("linux"):
        raise OSError(f"which libzmq pyzmq uses is not known on {sys.platform}")
    extension = sys.modules[zmq.backend.Socket.__module__].__file__
    # The linker binds an extension to the global scope first, then to its own dependencies, where dlsym looks with its
    # handle. RTLD_NOLOAD: never a second copy.
    pyzmq = ctypes.CDLL(extension, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    global_scope = ctypes.CDLL(None)
    addresses = [_address_of(f"zmq_msg_{name}", pyzmq, global_scope) for name in _FUNCTIONS]
    parts = [ctypes.c_int() for _ in range(3)]
    pyzmq.zmq_version(*map(ctypes.byref, parts))
    if tuple(part.value for part in parts) != zmq.zmq_version_info():
        raise OSError("pyzmq names another version of libzmq")
    return (_pointer * len(addresses))(*addresses)


def _address_of(name: str, pyzmq: ctypes.CDLL, global_scope: ctypes.CDLL) -> int:
    address = ctypes.cast(getattr(pyzmq, name), _pointer).value
    other = getattr(global_scope, name, None)
    if not address or (other is not None and ctypes.cast(other, _pointer).value != address):
        raise OSError(f"more than one {name}")
    return address
