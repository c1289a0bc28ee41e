"""Names of models and testbeds on the command line, with completion."""

import functools
import pkgutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from tpiedge.cli.options import CompletedName, argument_too
from tpiedge.errors import UserError
from tpiedge.local.catalogue import stored_packs
from tpiedge.model.presets import aliases
from tpiedge.model.source import DEMO, HubCache, cache_folder, parse_hub_name

_HELP = "'demo', a name from `tpiedge ls`, ORG/NAME, ORG/NAME:Q4_K_M, a GGUF file, a checkpoint's folder or a pack."
_T = TypeVar("_T")


def _pulled(context: click.Context) -> Iterable[str]:
    names = [model.name for model in HubCache(_cache(context)).pulled()]
    return (*(alias for alias in aliases() if parse_hub_name(alias) in names), *map(str, names))


def _cache(context: click.Context) -> Path:
    return cache_folder(context.params.get("cache"))


MODEL = CompletedName(
    lambda _context: (DEMO,), _pulled, lambda context: (pack.name for pack in stored_packs(_cache(context)))
)
HUB_MODEL = CompletedName(lambda _context: aliases(), *MODEL.sources)
"""The names of MODEL, and names of models that are not on this computer yet."""


def model_option(command: Callable[..., _T], *, needed: bool = True) -> Callable[..., _T]:
    """Adds the parameter `model_name`: an argument, or --model. If `needed`, a call without it is refused."""

    @functools.wraps(command)
    def named(*args: Any, model_name: str | None, **flags: Any) -> _T:
        if needed and model_name is None:
            raise UserError(f"no MODEL is given: {_HELP}")
        return command(*args, model_name=model_name, **flags)

    return argument_too("model", _HELP, MODEL, "model_name")(named)


def optional_model_option(command: Callable[..., _T]) -> Callable[..., _T]:
    return model_option(command, needed=False)


def _names(path: str) -> Callable[[click.Context], Iterable[str]]:
    def names(_context: click.Context) -> Iterable[str]:
        found: Iterable[str] = pkgutil.resolve_name(path)()
        return found

    return names


_RUNNING = _names("tpiedge.lab.testbed.state:names")
TESTBED = CompletedName(_names("tpiedge.lab.testbed.description:shipped_scenarios"), _RUNNING)
RUNNING_TESTBED = CompletedName(_RUNNING)
