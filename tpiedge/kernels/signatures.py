"""The C interface of the shared library: argument and result types of each exported function (native/)."""

import ctypes

from tpiedge.native_code import Signatures

#: As in native/interface.cpp.
ABI = 11

_int, _float, _size, _pointer = ctypes.c_int, ctypes.c_float, ctypes.c_int64, ctypes.c_void_p
_double = ctypes.c_double
_packed = ctypes.c_char_p
_ROWS = [_pointer, _pointer, _pointer, _size, _size, _size, _size, _size]

SIGNATURES: Signatures = {
    "tpiedge_has_isa": ([_int], _int),
    "tpiedge_best_isa": ([], _int),
    "tpiedge_open": ([_int, _int], _pointer),
    "tpiedge_close": ([_pointer], None),
    "tpiedge_project": ([_pointer, _pointer, _size, _size, _packed, _size], None),
    "tpiedge_contract": ([_pointer, _pointer, _packed, _size, _size], _int),
    "tpiedge_ffn": (
        [_pointer, _pointer, _size, _size, _pointer, _float, _int, _packed, _size, _pointer],
        _int,
    ),
    "tpiedge_panels_project": ([_pointer, _pointer, _size, _packed, _size], _int),
    "tpiedge_panels_contract": ([_pointer, _pointer, _size, _packed, _int], _int),
    "tpiedge_panels_attention": (
        [_pointer, _packed, _pointer, _pointer, _packed, _size, *[_pointer] * 3, _int],
        _int,
    ),
    "tpiedge_panels_ffn": (
        [_pointer, _packed, _pointer, _pointer, _size, _pointer, _float, _pointer, _int],
        _int,
    ),
    "tpiedge_add_sums": ([_pointer, _pointer, _size, _size, _int], None),
    "tpiedge_panels_stack": (
        [_pointer, _packed, _size, _pointer, _packed, _size, *[_pointer] * 4],
        _int,
    ),
    "tpiedge_rms_norm": ([*_ROWS, _pointer, _float], None),
    "tpiedge_rope": ([*_ROWS, _pointer, _pointer, _size], None),
    "tpiedge_crc32": ([_pointer, _size, ctypes.c_uint32], ctypes.c_uint32),
    "tpiedge_swiglu": ([_pointer, _pointer, _pointer, _pointer, _size], None),
    "tpiedge_kv_append": ([_pointer, _pointer, _pointer, _packed, _packed, *[_size] * 5], None),
    "tpiedge_attention": (
        [_pointer, _pointer, _pointer, _packed, _packed, _size, _packed, _size, _size, _float],
        None,
    ),
    "tpiedge_quantise": ([_size, _pointer, *[_size] * 6, _pointer, _pointer], _size),
    "tpiedge_draw": ([_size, _pointer, _size, _double, _size, *[_double] * 3], _size),
    "tpiedge_likeliest": ([_size, _pointer, _size, _size, _pointer], _size),
    "tpiedge_probe_read": ([_pointer, _size], ctypes.c_uint64),
    "tpiedge_probe_operations": ([_int], _size),
    "tpiedge_probe_multiply": ([_int, _size], _size),
}
