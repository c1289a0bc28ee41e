"""Headers of which only the place is filled in."""

import pytest

from tpiedge.errors import ProtocolError
from tpiedge.wire.codec import HeaderTemplate, encode
from tpiedge.wire.data import CANCEL, Partial, Reduced, Slice
from tpiedge.wire.tensors import TensorHeader

ROW = TensorHeader("f32", (1, 2048))


@pytest.mark.parametrize("place", [(0, 0, 0), (2**64 - 1, 2**32 - 1, 2**32 - 1), (1, 2, 3)])
def test_a_header_template_gives_what_encoding_gives(place: tuple[int, int, int]) -> None:
    assert HeaderTemplate(Partial(7, 5, 5, 5, 0, 3, ROW)).at(*place) == encode(Partial(7, *place, 0, 3, ROW))
    assert HeaderTemplate(Slice(7, 5, 5, 5, CANCEL, 6, 3, ROW)).at(*place) == encode(
        Slice(7, *place, CANCEL, 6, 3, ROW)
    )
    assert HeaderTemplate(Reduced(7, 5, 5, 5, CANCEL, ROW)).at(*place) == encode(
        Reduced(7, *place, CANCEL, ROW)
    )


def test_a_header_does_not_change_afterwards() -> None:
    template = HeaderTemplate(Partial(1, 0, 0, 0, 0, 1, None))
    first = template.at(1, 1, 1)
    assert template.at(2, 2, 2) != first == encode(Partial(1, 1, 1, 1, 0, 1, None))


@pytest.mark.parametrize("place", [(-1, 0, 0), (2**64, 0, 0), (0, 2**32, 0), (0, 0, -1)])
def test_a_place_out_of_bounds_is_refused(place: tuple[int, int, int]) -> None:
    with pytest.raises(ProtocolError, match="no message has step"):
        HeaderTemplate(Partial(1, 0, 0, 0, 0, 1, ROW)).at(*place)
