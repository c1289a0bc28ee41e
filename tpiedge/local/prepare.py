"""Opens a model by name: its pack, tokenizer and chat template."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tpiedge.engine.sampling import MAX_TOP_K, MIN_P, REPETITION_PENALTY, TOP_P
from tpiedge.errors import UserError
from tpiedge.kernels.kv_format import usual_kv
from tpiedge.local.catalogue import find_model, is_complete, load_label, mark_used
from tpiedge.local.packing import Source, cached_pack, pack_model
from tpiedge.model.call_reader import call_form
from tpiedge.model.chat_prompt import chat_prompt
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.model.config import usual_pooling
from tpiedge.model.folder import ConfigFields, has_file, read_json
from tpiedge.model.gguf.model import GgufModel
from tpiedge.model.output import OutputForm
from tpiedge.model.source import DEMO, parse_hub_name
from tpiedge.model.spec import config_of_pack
from tpiedge.model.template import ChatTemplate, templates_of
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.pack.grids import Exponents, grid_exponents
from tpiedge.pack.manifest import TEXT_FOLDER
from tpiedge.pack.reader import Pack, PackHold
from tpiedge.pack.specs import Precision
from tpiedge.planner.arithmetic import check_compute, check_head_width, check_native, usual_compute
from tpiedge.progress import say
from tpiedge.sanitise import sanitised_line
from tpiedge.wire.fields import Compute, KVPrecision, Range
from tpiedge.wire.requests import Sampling

USUAL = Sampling(temperature=0.8, top_p=0.95, min_p=0.05)
"""The default sampling. At temperature 1 with the whole vocabulary, a small model talks nonsense."""
_FILE = "generation_config.json"
_NUMBERS = {
    "temperature": Range(0.0, 100.0),
    "top_p": TOP_P,
    "min_p": MIN_P,
    "repetition_penalty": REPETITION_PENALTY,
}


class PreparedModel:
    """A model ready to run. `folder`: the folder of its text files. `also_called`: other names; the pack's name comes
    first. `path`: the path by which the user named the model, or None. With a path, `public_name` is the pack's
    name."""

    def __init__(
        self,
        name: str,
        pack: Pack,
        compute: Compute,
        folder: Path | None,
        kv: KVPrecision | None = None,
        also_called: tuple[str, ...] = (),
        path: str | None = None,
    ) -> None:
        self.name = name
        self.path = path
        self.public_name = name if path is None else also_called[0]
        self.also_called = also_called
        self.pack = pack
        self.compute = compute
        self.kv = kv or usual_kv(compute)
        self.config = config_of_pack(pack)
        check_head_width(self.kv, self.config.head_dim)
        self._folder = folder
        self._hold = PackHold(pack.path)
        mark_used(pack.path)

    def described(self) -> dict[str, str]:
        return {
            "model": self.name,
            "precision": self.pack.precision.value,
            "compute": self.compute,
            "kv_precision": self.kv,
        }

    @property
    def grids(self) -> Exponents:
        """The grids of sums; empty unless the arithmetic is int8. Raises UserError."""
        return grid_exponents(self.pack) if self.compute == "int8" else ()

    @property
    def has_tokenizer(self) -> bool:
        return self._folder is not None and has_file(self._folder, "tokenizer.json")

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Raises UserError if the model has no tokenizer."""
        if self._folder is None or (self._folder.parent == self.pack.path and not self.has_tokenizer):
            raise self._lacking("tokenizer")
        return Tokenizer.open(self._folder)

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """The tokens that end an answer, from config and tokenizer. Raises UserError."""
        own = self.tokenizer.end_ids if self.has_tokenizer else ()
        known = (token for token in own if token < self.config.vocab_size)
        return tuple(dict.fromkeys((*self.config.eos_ids, *known)))

    @cached_property
    def has_template(self) -> bool:
        return self.has_tokenizer and self._folder is not None and bool(templates_of(self._folder))

    def message_ids(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Returns the prompt's ids for a conversation. Raises UserError without a template."""
        return tuple(self.tokenizer.encode(chat_prompt(self.template, messages), add_special=False))

    @cached_property
    def speech(self) -> OutputForm:
        """The form of answers to messages. Reasoning between marks remains in the text. Raises UserError."""
        has_messages = call_form(self.template.source(tools=False)) == "harmony"
        return OutputForm(thinking="channels" if has_messages else "")

    @cached_property
    def usual_sampling(self) -> Sampling:
        """The default sampling. Raises UserError."""
        return usual_sampling(self._folder)

    @cached_property
    def usual_pooling(self) -> str:
        return usual_pooling(self._folder)

    @cached_property
    def template(self) -> ChatTemplate:
        """Raises UserError if the model has none."""
        if self._folder is None:
            raise self._lacking("chat template")
        return ChatTemplate.open(self._folder, self.tokenizer.special_tokens)

    def _lacking(self, what: str) -> UserError:
        return UserError(f"the pack {self.name} has no {what}: give --prompt-ids, or the checkpoint's folder")


def prepare(
    name: str,
    precision: str | None,
    compute: Compute | None,
    cache: Path | None,
    kv: KVPrecision | None = None,
) -> PreparedModel:
    """Opens the model's pack, or makes one. Blocks."""
    found = find_model(name, cache)
    path = name if name != DEMO and found.path == Path(name) else None
    folder: Path | None = found.path
    others: list[str] = []
    if found.kind == "pack":
        out, stored = found.path, Pack.open(found.path).precision
        widened = precision == "f32" and stored is Precision.BF16
        if precision not in (None, stored.value) and not widened:
            origin = load_label(out).source or "the checkpoint"
            raise UserError(
                f"the pack {name} is stored in {stored.value}: give what it was made from with --precision "
                f"{precision}, which is {sanitised_line(origin)}"
            )
        _, arithmetic = _choose(stored, None if stored.value == precision else precision, compute, kv)
        folder = out / TEXT_FOLDER if (out / TEXT_FOLDER).is_dir() else None
    else:
        is_gguf, hub_name = found.kind == "GGUF file", parse_hub_name(name)
        source: Source = GgufModel.open(found.path) if is_gguf else Checkpoint.open(found.path)
        storage = source.storage(None)
        stored, arithmetic = _choose(storage.layers, precision, compute, kv)
        if precision is not None:
            storage = source.storage(stored)
        out = cached_pack(source, storage, cache)
        if not is_complete(out):
            for notice in pack_model(source, storage, cache).notices:
                say(f"tpiedge: {source.label}: {notice}")
        if is_gguf:
            folder = out / TEXT_FOLDER
        if is_gguf and path is not None:  # its name is the pack's, not the file's path
            name = load_label(out).name
        elif hub_name is not None and path is None:
            others = [str(hub_name)]
    also_called = (load_label(out).name, *others)
    return PreparedModel(name, Pack.open(out), arithmetic, folder, kv, also_called, path)


def _choose(
    source: Precision, precision: str | None, compute: Compute | None, kv: KVPrecision | None
) -> tuple[Precision, Compute]:
    stored, arithmetic = choose_arithmetics(source, precision, compute)
    check_native(stored, arithmetic, kv or usual_kv(arithmetic))
    return stored, arithmetic


def choose_arithmetics(
    source: Precision, precision: str | None, compute: Compute | None
) -> tuple[Precision, Compute]:
    """Returns (precision of storage, arithmetic). By default, storage has the source's precision. Raises UserError."""
    if precision == "f32" and compute is None and not source.quantised:
        return source, "f32"  # which widens bf16 exactly
    stored = Precision(precision) if precision else source
    arithmetic = compute or usual_compute(stored)
    check_compute(stored, arithmetic)
    return stored, arithmetic


def usual_sampling(folder: Path | None) -> Sampling:
    """Reads generation_config.json; returns USUAL if it says nothing. Raises UserError."""
    if folder is None or not has_file(folder, _FILE):
        return USUAL
    fields = ConfigFields(str(folder / _FILE), read_json(folder, _FILE, 1_000_000))
    greedy = not fields.flag("do_sample", True)
    said = {name: fields.optional_number(name, one.low, one.high) for name, one in _NUMBERS.items()}
    top_k = fields.optional_integer("top_k", -1, MAX_TOP_K)
    known: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    if top_k is None and not known and not greedy:
        return USUAL
    if greedy:
        known["temperature"] = 0.0
    return replace(Sampling(1.0, max(top_k or 0, 0)), **known)
