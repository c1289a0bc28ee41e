"""The models that requests may name: the served one and, unless switching is off, this computer's packs."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tpiedge.errors import UserError
from tpiedge.local.catalogue import StoredPack, packs_folder, stored_packs
from tpiedge.local.prepare import USUAL, PreparedModel
from tpiedge.model.source import HubName, parse_hub_name
from tpiedge.model.spec import config_of_pack
from tpiedge.model.template import ChatTemplate
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.pack.reader import Pack
from tpiedge.wire.requests import Sampling


class UnknownModel(UserError):
    """No model has this name, or it may not be served."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model and its weights. `created`: seconds since 1970. `context_tokens`: tokens of prompt and answer together.
    `width`: length of an embedding. `digest`: the pack's id, 64 hexadecimal digits. `path`: the model's place on the
    master's computer. Requests may name the model by this path, but no client is told the path. `ffn_part`: the FFN's
    part of a layer's weights, 0 to 1. `usual_sampling`: requests' default. A model has no tokenizer until it is
    opened."""

    name: str
    context_tokens: int
    created: int
    also_called: tuple[str, ...] = ()
    width: int = 0
    family: str = "llama"
    precision: str = "f32"
    nbytes: int = 0
    digest: str = "0" * 64
    path: str | None = None
    pooling: str = "mean"
    ffn_part: float = 0.5
    eos_ids: tuple[int, ...] = ()
    vocab_size: int = 0
    usual_sampling: Sampling = USUAL
    tokenizer: Tokenizer | None = None
    template: ChatTemplate | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.also_called)

    def is_called(self, name: str) -> bool:
        return name in (self.path, *self.names)


def served_model(model: PreparedModel, context_tokens: int, aliases: Sequence[str] = ()) -> ServedModel:
    """Describes an open model. Raises UserError."""
    others = dict.fromkeys(name for name in (*model.also_called, *aliases) if name != model.public_name)
    described = _described(model.pack, model.public_name, context_tokens, time.time())
    return replace(
        described,
        also_called=tuple(others),
        path=model.path,
        pooling=model.usual_pooling,
        eos_ids=model.end_ids,
        usual_sampling=model.usual_sampling,
        tokenizer=model.tokenizer if model.has_tokenizer else None,
        template=model.template if model.has_template else None,
    )


def _described(pack: Pack, name: str, context_tokens: int, created: float) -> ServedModel:
    config = config_of_pack(pack)
    return ServedModel(
        name,
        context_tokens,
        int(created),
        width=config.hidden_size,
        family=config.model_type,
        precision=pack.precision.value,
        nbytes=pack.nbytes,
        digest=pack.id,
        ffn_part=config.ffn_part,
        vocab_size=config.vocab_size,
    )


class ServedModels:
    """The models of a running master. Thread-safe. `only`: names of packs of `cache` that requests may name beside
    `first`; None allows all packs. `open_pack(path)` readies a pack's model for the master. Opening a model drops the
    tokenizers of other models, except `first` and the packs `in_use()`. Raises UnknownModel for an unknown name in
    `only`."""

    def __init__(
        self,
        first: ServedModel,
        pack: Path,
        cache: Path | None,
        only: Sequence[str] | None,
        open_pack: Callable[[Path], ServedModel],
        in_use: Callable[[], Collection[str]],
    ) -> None:
        self.first = first
        self._cache = cache
        self._open_pack, self._in_use = open_pack, in_use
        self._lock = threading.Lock()
        self._opened = {pack.resolve(): first}
        self._folder = packs_folder(cache)
        self._seen: object = None  # the folder's entries when `_packs` read it last
        self._stored: list[tuple[StoredPack, ServedModel]] = []
        self._only: list[Path] | None = None
        if only is not None:
            self._only = [self._called(name)[0].path for name in only if not first.is_called(name)]

    @property
    def offered(self) -> list[ServedModel]:
        """The models that requests may name. Reads the manifests of new packs."""
        opened = dict(self._opened)
        return [
            *opened.values(),
            *(model for pack, model in self._packs() if pack.path.resolve() not in opened),
        ]

    def find(self, name: str) -> ServedModel:
        """Finds a model by name and opens it, which may take seconds. Raises UnknownModel, and UserError if it cannot
        be served."""
        pack, model = self._named(name)
        return model if pack is None else self._open(pack.path)

    def described(self, name: str) -> ServedModel:
        """Finds a model by name without opening it. Raises UnknownModel."""
        return self._named(name)[1]

    def _named(self, name: str) -> tuple[StoredPack | None, ServedModel]:
        """Returns an open model, or a pack with its description."""
        bare = name.removesuffix(":latest")  # Ollama's clients append it
        pulled = str(parse_hub_name(bare) or bare)
        for one in tuple(self._opened.values()):
            if any(map(one.is_called, (name, bare, pulled))):
                return None, one
        return self._called(bare)

    def packed(self, pack: str) -> ServedModel:
        """Finds a model by its pack's id. Returns `first` for an unknown id. May open the model."""
        for one in tuple(self._opened.values()):
            if one.digest == pack:
                return one
        for stored, model in self._packs() if pack else ():
            if model.digest == pack:
                return self._open(stored.path)
        return self.first

    def _open(self, path: Path) -> ServedModel:
        with self._lock:
            found = self._opened.get(path.resolve())
            if found is None:
                try:
                    found = self._open_pack(path)
                except UserError as error:  # no client is told where models are
                    raise UserError(str(error).replace(str(path), path.name)) from None
                used = {self.first.digest, *self._in_use()}
                kept = {where: one for where, one in self._opened.items() if one.digest in used}
                self._opened = {**kept, path.resolve(): found}
            return found

    def _packs(self) -> list[tuple[StoredPack, ServedModel]]:
        """Returns the packs that may be served. Reads them again only if one was added, renamed or removed."""
        if self._only == []:
            return []
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            # A link may lead to a disk that is not there.
            seen = sorted((one.name, one.stat().st_mtime_ns) for one in entries if one.is_dir())
            if seen != self._seen:
                found = []
                for one in stored_packs(self._cache):
                    with contextlib.suppress(UserError, OSError):  # damaged, or removed meanwhile
                        found.append((one, _closed(one)))
                self._stored, self._seen = found, seen
        return [one for one in self._stored if self._only is None or one[0].path in self._only]

    def _called(self, name: str) -> tuple[StoredPack, ServedModel]:
        hub, packs = parse_hub_name(name), self._packs()
        wanted = {name.lower(), *([str(HubName(hub.repo, quant=hub.quant)).lower()] if hub else [])}
        found = [one for one in packs if wanted & {each.lower() for each in _names(one[0])}]
        if found:
            return max(found, key=lambda one: one[0].used_s)
        served = dict.fromkeys(one.name for one in self.offered)
        named = ", ".join(map(repr, [*served][:9]))
        message = f"the model {name[:100]!r} is not served here; {named} {'are' if len(served) > 1 else 'is'}"
        if self._only is not None:
            raise UnknownModel(f"{message}: --switch or --models of the master allows no other")
        if hub is not None:
            message += f" ('tpiedge use {name[:100]}' on the master's computer fetches it and makes it ready)"
        raise UnknownModel(message)


def _names(pack: StoredPack) -> tuple[str, ...]:
    return tuple(filter(None, (pack.name, pack.path.name, pack.model, pack.source)))


def _closed(pack: StoredPack) -> ServedModel:
    opened = Pack.open(pack.path)
    return _described(opened, pack.name, config_of_pack(opened).context_tokens, pack.used_s)
