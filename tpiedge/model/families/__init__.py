"""The families of models that tpiedge computes, one declarative file each."""

from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from tpiedge.model.families.family import Family

FAMILIES: Final[dict[str, Family]] = {
    found.model_type: found
    for module in sorted(one.name for one in iter_modules(__path__) if one.name != "family")
    for found in [import_module(f"{__name__}.{module}").FAMILY]
}
"""`model_type` of config.json -> its family."""

WRAPPERS: Final = {wrapper: name for name, family in FAMILIES.items() for wrapper in family.wrappers}
"""`model_type` of a model with more than text -> that of its text."""
