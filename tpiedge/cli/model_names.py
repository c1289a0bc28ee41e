"""What names a model on the command line. A shell completes what lies on this computer, and the aliases."""

from collections.abc import Iterable
from pathlib import Path

import click

from tpiedge.cli.types import CompletedName
from tpiedge.local.catalogue import stored_packs
from tpiedge.model.aliases import aliases
from tpiedge.model.hub.cache import HubCache, cache_folder
from tpiedge.model.source import DEMO

__all__ = ["MODEL", "MODEL_HELP"]

MODEL_HELP = "'demo', a name of `tpiedge ls`, ORG/NAME, a GGUF file, a checkpoint's folder or a pack."


def _known(_context: click.Context) -> Iterable[str]:
    return (DEMO, *aliases())


def _pulled(context: click.Context) -> Iterable[str]:
    return (str(model.name) for model in HubCache(_cache(context)).pulled())


def _packs(context: click.Context) -> Iterable[str]:
    return (pack.name for pack in stored_packs(_cache(context)))


def _cache(context: click.Context) -> Path:
    """The folder that --cache before the cursor says, or the variable, or the user's own."""
    return cache_folder(context.params.get("cache"))


MODEL = CompletedName(_known, _pulled, _packs)
