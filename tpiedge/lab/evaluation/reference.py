"""The model that another one is compared with: open, and fit to be compared."""

from pathlib import Path

from tpiedge.errors import UserError
from tpiedge.local.catalogue import ModelKind, find_model
from tpiedge.local.prepare import PreparedModel
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.pack.layout import Precision
from tpiedge.pack.reader import Pack
from tpiedge.progress import say
from tpiedge.sanitise import quote


def check_reference(name: str, named: bool, precision: str, cache: Path | None) -> None:
    """Raise UserError for a pack that is not in `precision`. Nothing is packed.

    `named`: by --reference-model; otherwise it is the model itself.
    """
    found = find_model(name, cache)
    if found.kind is ModelKind.PACK:
        _refuse_precision(name, named, precision, Pack.open(found.path).precision)


def refuse_other_vocabulary(model: PreparedModel, reference: PreparedModel) -> None:
    """Raises UserError where an id has a token in both, and not the same one.

    One that only one of them names says nothing: GGUF files give a name to every row of the embedding.
    """
    if reference.config.vocab_size != model.config.vocab_size:
        raise UserError(
            f"{model.name} has {model.config.vocab_size} tokens, {reference.name} {reference.config.vocab_size}: "
            "only models of one vocabulary can be compared"
        )
    if not (model.has_tokenizer and reference.has_tokenizer):
        lacking = reference if model.has_tokenizer else model
        say(f"tpiedge: {lacking.name} has no tokenizer: its vocabulary is not compared")
        return
    found = _first_difference(model.tokenizer, reference.tokenizer)
    if found is not None:
        own, other = (quote(one.tokenizer.token(found)) for one in (model, reference))
        raise UserError(
            f"token {found} of {model.name} is {own}, of {reference.name} {other}: only models of one vocabulary "
            "can be compared"
        )


def _refuse_precision(name: str, named: bool, wanted: str, stored: Precision) -> None:
    """A pack is what it is; bf16 goes as f32, which holds it exactly."""
    if wanted == stored.value or (wanted == "f32" and stored is Precision.BF16):
        return
    fitting = f"--reference {stored.value}"
    if named:
        raise UserError(
            f"the reference {name} is a pack in {stored.value}, not in {wanted}: give {fitting} with it"
        )
    raise UserError(
        f"{name} is a pack in {stored.value}, which cannot be its own reference in {wanted}: give the checkpoint "
        f"that it was made from as --reference-model, or {fitting}"
    )


def _first_difference(one: Tokenizer, other: Tokenizer) -> int | None:
    """The lowest id that both have, as different tokens."""
    shared = set(one.vocabulary.values()) & set(other.vocabulary.values())
    return min((found for found in shared if one.token(found) != other.token(found)), default=None)
