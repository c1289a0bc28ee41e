"""How the numbers of a model are stored: its layers, its embedding and its head may differ."""

from collections.abc import Mapping
from dataclasses import dataclass

from tpiedge.errors import UserError
from tpiedge.pack.layout import BlobLayout
from tpiedge.pack.specs import JSON, BlobSpec, ModelSpec, Precision


@dataclass(frozen=True)
class Storage:
    """The precision of each kind of blob, and whether the quantiser searches for its scales.

    With `vectors_f32` norms and biases are in f32 beside matrices in bf16, too: for those that bf16 would round.
    Beside others they are anyway: to say it is refused, as it would be a second name for one content. Only quantised
    layers go with an embedding or a head of another precision.
    """

    layers: Precision
    embedding: Precision
    head: Precision
    search: bool = True
    vectors_f32: bool = False

    def __post_init__(self) -> None:
        if not self.layers.quantised and (
            {self.layers, self.embedding, self.head} != {self.layers} or not self.search
        ):
            raise UserError(
                f"layers in {self.layers.value} go with an embedding and a head of the same: another precision of "
                "theirs, or how scales are chosen, needs --precision q8 or q4"
            )
        if self.vectors_f32 and Precision.BF16 not in (self.layers, self.embedding, self.head):
            raise UserError("vectors are f32 anyway where no matrix is bf16: pack again")

    @staticmethod
    def of(
        layers: Precision,
        *,
        tied: bool,
        embedding: Precision | None = None,
        head: Precision | None = None,
        search: bool = True,
    ) -> "Storage":
        """What was asked for, with what is usual beside quantised layers: the embedding in bf16, the head in q8.

        A tied model has one matrix for both, in q8.
        """
        usual = Precision.Q8 if layers.quantised else layers
        if tied:
            if None not in (embedding, head) and embedding is not head:
                raise UserError("the model's head is its embedding: give them one precision")
            embedding = head = embedding or head or usual
        embedding = embedding or (Precision.BF16 if layers.quantised else layers)
        head = head or usual
        if layers.quantised and Precision.Q4 not in (layers, embedding, head):
            search = True  # as usual: eight bits leave nothing to search for
        return Storage(layers, embedding, head, search)

    def of_blob(self, key: int | str) -> Precision:
        """`key` as in Pack: a layer's number, "embedding" or "head"."""
        return {"embedding": self.embedding, "head": self.head}.get(str(key), self.layers)

    def layout(self, key: int | str, spec: BlobSpec) -> BlobLayout:
        """The layout of the blob `key`."""
        return BlobLayout.of(spec, self.of_blob(key), vectors_f32=self.vectors_f32)

    def label(self, *, tied: bool) -> str:
        """The part of a folder's name: "q4", and what is unusual of it ("q4-head-bf16")."""
        usual = Storage.of(self.layers, tied=tied)
        parts = [self.layers.value]
        if self.embedding is not usual.embedding:
            parts.append(f"embedding-{self.embedding.value}")
        if self.head is not usual.head:
            parts.append(f"head-{self.head.value}")
        if self.vectors_f32:
            parts.append("vectors-f32")
        return "-".join(parts if self.search else [*parts, "plain"])

    def to_json(self) -> dict[str, JSON]:
        """Fields of a manifest: "precision" alone where that says all."""
        fields: dict[str, JSON] = {"precision": self.layers.value}
        if self.layers.quantised:
            fields["precisions"] = {"embedding": self.embedding.value, "head": self.head.value}
        if self.vectors_f32:
            fields["vectors"] = Precision.F32.value
        return fields if self.search else fields | {"search": False}

    @staticmethod
    def from_json(fields: Mapping[str, JSON]) -> "Storage":
        """Raises UserError."""
        if "precision" not in fields:
            raise UserError("the field precision is missing: pack again")
        layers = parse_precision(fields["precision"])
        others, search = fields.get("precisions", {}), fields.get("search", True)
        if not isinstance(others, Mapping) or not others.keys() <= {"embedding", "head"}:
            raise UserError("precisions are not those of the embedding and the head: pack again")
        if not isinstance(search, bool):
            raise UserError("search is not true or false: pack again")
        vectors = fields.get("vectors")
        if vectors not in (None, Precision.F32.value):
            raise UserError("vectors is not f32: pack again")
        embedding, head = (parse_precision(others.get(name, layers.value)) for name in ("embedding", "head"))
        return Storage(layers, embedding, head, search, vectors is not None)


def storage_of(precision: "Precision | Storage", spec: ModelSpec) -> Storage:
    """`precision` of the layers with what is usual beside it; a Storage stays."""
    return precision if isinstance(precision, Storage) else Storage.of(precision, tied=spec.tied)


def parse_precision(value: JSON) -> Precision:
    """'bf16' -> Precision.BF16. Raises UserError."""
    try:
        return Precision(value)
    except ValueError:
        known = ", ".join(precision.value for precision in Precision)
        raise UserError(f"unknown precision {str(value)[:20]!r}: this version knows {known}") from None
