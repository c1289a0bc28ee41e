"""Fields without bounds are a defect that shows at the first use of the class."""

from dataclasses import dataclass
from typing import Annotated

import pytest

from tpiedge.wire.fields import MaxLength, Range
from tpiedge.wire.messages import TAGS
from tpiedge.wire.schema import schema_of


@dataclass(frozen=True, slots=True)
class BareInteger:
    count: int


@dataclass(frozen=True, slots=True)
class BareText:
    name: str


@dataclass(frozen=True, slots=True)
class BareTuple:
    items: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class WrongBound:
    count: Annotated[int, MaxLength(3)]


@dataclass(frozen=True, slots=True)
class Mapping:
    items: dict[str, bool]


@pytest.mark.parametrize("cls", [BareInteger, BareText, BareTuple, WrongBound, Mapping])
def test_a_field_without_bounds_is_refused(cls: type) -> None:
    with pytest.raises(TypeError, match="bound"):
        schema_of(cls)


@dataclass(frozen=True, slots=True)
class Bounded:
    share: Annotated[float, Range(0.0, 1.0)]
    flag: bool


def test_values_pass_both_ways() -> None:
    schema = schema_of(Bounded)
    assert schema.write(Bounded(1, True)) == (1.0, True)
    assert schema.read((0.5, False)) == Bounded(0.5, False)


@pytest.mark.parametrize("wire", [(1, True), (1.5, True), (0.5, 1), (0.5,), [0.5, True], None])
def test_read_is_strict(wire: object) -> None:
    with pytest.raises(ValueError, match="Bounded"):
        schema_of(Bounded).read(wire)


def test_every_message_has_a_schema_and_is_frozen_with_slots() -> None:
    for cls in TAGS.values():
        assert schema_of(cls).names
        assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
        assert not hasattr(cls, "__dict__") or "__slots__" in vars(cls)
