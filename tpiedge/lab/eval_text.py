"""Cuts a text into windows and computes the text's likelihood under a model.

A form feed ends a document. Every token is scored once, except the first token of a document. In a document's second
and later windows, every scored token follows at least `context` - `stride` tokens.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from tpiedge.errors import InternalError, UserError
from tpiedge.local.cluster import LocalCluster
from tpiedge.local.layout import check_context
from tpiedge.local.prepare import PreparedModel
from tpiedge.model.source import DEMO
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.progress import ByteProgress, say
from tpiedge.sanitise import quote
from tpiedge.wire.control import PromptScores
from tpiedge.wire.requests import GenerationRequest

_MAX_BYTES = 256_000_000
_CONTEXT = 2048
_SEPARATOR = "\f"


@dataclass(frozen=True)
class Window:
    """A piece of a document. The tokens `ids[first:]` are scored; `first` >= 1."""

    ids: tuple[int, ...]
    first: int

    @property
    def scored(self) -> int:
        return len(self.ids) - self.first


@dataclass(frozen=True)
class EvalText:
    """A text, cut into windows. `scored_bytes`: the UTF-8 length of all scored tokens."""

    name: str
    documents: int
    tokens: int
    scored_bytes: int
    context: int
    stride: int
    windows: tuple[Window, ...]

    @property
    def scored(self) -> int:
        return sum(window.scored for window in self.windows)

    @property
    def longest(self) -> int:
        return max(len(window.ids) for window in self.windows)

    def described(self) -> dict[str, object]:
        return {
            "text": self.name,
            "documents": self.documents,
            "bytes": self.scored_bytes,
            "tokens": self.tokens,
            "scored_tokens": self.scored,
            "context": self.context,
            "stride": self.stride,
        }


def read_text(
    model: PreparedModel,
    path: Path | None,
    context: int | None,
    stride: int | None,
    reference: PreparedModel | None = None,
) -> EvalText:
    """Reads windows that fit both models. `path`: None means the demo's held-out text, for the demo only. `context`: by
    default, the smaller of 2048 and the models' limit. `stride`: by default, half the context. Raises UserError."""
    own = model.config.context_tokens
    positions = own if reference is None else reference.config.context_tokens
    context = min(own, positions, _CONTEXT) if context is None else check_context(model, context)
    if reference is not None and context > positions:
        raise UserError(
            f"--context {context} is out of range: the reference {reference.name} has 1 to {positions} positions"
        )
    if context < 2:
        raise UserError(f"--context {context} leaves no token to predict: give 2 at least")
    stride = max(1, context // 2) if stride is None else stride
    if not 1 <= stride < context:
        raise UserError(f"--stride {stride} is out of range: 1 to {context - 1}, one below --context")
    if path is None and model.name != DEMO:
        raise UserError("--text FILE is missing: only the demo model brings its own text")
    name, documents = documents_of(path)
    if not model.has_tokenizer:
        raise UserError(f"{model.name} has no tokenizer, so no text can go in: give the checkpoint's folder")
    windows: list[Window] = []
    tokens = scored_bytes = 0
    for document in documents:
        ids = tuple(model.tokenizer.encode(document))
        tokens += len(ids)
        if len(ids) > 1:
            scored_bytes += len(document.encode()) - _unscored_bytes(model.tokenizer, ids[0])
            windows += windows_of(ids, context, stride)
    if not windows:
        raise UserError(f"{name} has {tokens} token{'' if tokens == 1 else 's'}: give a text of 2 at least")
    _check_ids(model, windows)
    return EvalText(name, len(documents), tokens, max(1, scored_bytes), context, stride, tuple(windows))


def windows_of(ids: tuple[int, ...], context: int, stride: int) -> Iterator[Window]:
    """Yields a document's windows. `stride` must be less than `context`."""
    start, scored = 0, 1
    while scored < len(ids):
        stop = min(start + context, len(ids))
        yield Window(ids[start:stop], scored - start)
        scored = stop
        start = max(0, stop + stride - context)


def documents_of(path: Path | None) -> tuple[str, list[str]]:
    """Returns a text's name and documents; without `path`, the demo model's held-out text's. Raises UserError."""
    if path is None:
        text, name = (
            resources.files("tpiedge.model").joinpath("demo/held_out.txt").read_text("utf-8"),
            "held out",
        )
    else:
        text, name = _read(path), path.name
    documents = [document for document in text.split(_SEPARATOR) if document.strip()]
    if not documents:
        raise UserError(f"{path or name} is empty: give a text of 2 tokens at least")
    return name, documents


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise UserError(f"{path} is larger than {_MAX_BYTES // 1_000_000} MB: give a part of it")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8 (byte {error.start}): convert it") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}: give the path of a text") from None


def _unscored_bytes(tokenizer: Tokenizer, first: int) -> int:
    return 0 if first in tokenizer.special_ids else len(tokenizer.decode([first]).encode())


def _check_ids(model: PreparedModel, windows: list[Window]) -> None:
    beyond = max(max(window.ids) for window in windows)
    if beyond >= model.config.vocab_size:
        raise UserError(f"token id {beyond} is outside the vocabulary of {model.config.vocab_size}")


def refuse_other_vocabulary(model: PreparedModel, reference: PreparedModel) -> None:
    """Raises UserError if the vocabularies have different sizes or different tokens for an id."""
    if reference.config.vocab_size != model.config.vocab_size:
        raise UserError(
            f"{model.name} has {model.config.vocab_size} tokens, {reference.name} {reference.config.vocab_size}: "
            "only models of one vocabulary can be compared"
        )
    if not (model.has_tokenizer and reference.has_tokenizer):
        lacking = reference if model.has_tokenizer else model
        say(f"tpiedge: {lacking.name} has no tokenizer: its vocabulary is not compared")
        return
    vocabularies = (prepared.tokenizer.vocabulary for prepared in (model, reference))
    one, two = ({token: text for text, token in vocabulary.items()} for vocabulary in vocabularies)
    # Only common ids: GGUF files have a token for every row of the embedding.
    found = min((token for token in one.keys() & two.keys() if one[token] != two[token]), default=None)
    if found is not None:
        own, other = quote(one[found]), quote(two[found])
        raise UserError(
            f"token {found} of {model.name} is {own}, of {reference.name} {other}: only models of one vocabulary "
            "can be compared"
        )


def likelihood_of(cluster: LocalCluster, text: EvalText) -> dict[str, float]:
    """Returns nats_per_token, perplexity and bits_per_byte of the text. Raises UserError unless they are finite."""
    progress = ByteProgress("scoring")
    nats, done = 0.0, 0
    try:
        for number, window in enumerate(text.windows):
            nats -= math.fsum(_scores(cluster, f"eval-{number}", window))
            done += window.scored
            progress(text.scored_bytes * done // text.scored, text.scored_bytes)
    finally:
        progress.finish(text.scored_bytes * done // text.scored)
    mean = nats / text.scored
    if not mean < 700:  # exp of more overflows
        raise UserError(f"the model gives the text {nats} nats, no perplexity: check the files of the model")
    bits = nats / math.log(2) / text.scored_bytes
    return {"nats_per_token": mean, "perplexity": math.exp(mean), "bits_per_byte": bits}


def _scores(cluster: LocalCluster, name: str, window: Window) -> list[float]:
    request = GenerationRequest(name, window.ids, max_tokens=1, ignore_eos=True, prompt_scores=True)
    found: list[float] = []
    for event in cluster.generate(request):
        if isinstance(event, PromptScores):
            found += event.scores
    if len(found) != len(window.ids) - 1:
        raise InternalError(f"{len(found)} scores for a text of {len(window.ids)} tokens: report it")
    return found[window.first - 1 :]
