"""Everything that is known of one model, for people and for programs."""

from dataclasses import dataclass
from pathlib import Path

from tpiedge.errors import UserError
from tpiedge.kernels.panels import GROUP
from tpiedge.local.catalogue import ModelKind, find_model, load_label, packs_of, packs_of_gguf, stored_pack
from tpiedge.model.aliases import Alias, aliases
from tpiedge.model.config import ModelConfig
from tpiedge.model.gguf.model import GgufModel
from tpiedge.model.hub.cache import HubName, parse_hub_name
from tpiedge.model.spec import config_of_pack, model_spec
from tpiedge.pack.layout import Precision
from tpiedge.pack.reader import Pack
from tpiedge.pack.specs import BlobSpec
from tpiedge.pack.storage import storage_of
from tpiedge.sanitise import sanitised_line
from tpiedge.units import format_bytes

_NODE_COUNTS = (1, 2, 4, 8)
_SHAPE = (
    "num_layers",
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
)


@dataclass(frozen=True)
class ModelCard:
    """`folder` is a checkpoint's or a pack's, or a GGUF file; None where the model is not on this computer, whose shape
    then comes from the alias."""

    name: str
    config: ModelConfig
    folder: Path | None
    packs: tuple[Path, ...]
    hub_name: HubName | None
    alias: Alias | None

    @staticmethod
    def of(name: str, cache: Path | None) -> "ModelCard":
        """Raises UserError for a model that is neither here nor an alias."""
        hub_name = parse_hub_name(name)
        alias = aliases().get(name) or _alias_of(hub_name)
        try:
            found = find_model(name, cache)
        except UserError:
            if alias is None:
                raise
            return ModelCard(name, alias.config, None, (), hub_name, alias)
        if found.kind is ModelKind.PACK:
            config = config_of_pack(Pack.open(found.path))
            return ModelCard(load_label(found.path).name, config, found.path, (found.path,), None, None)
        if found.kind is ModelKind.GGUF:
            model = GgufModel.open(found.path)
            packs = tuple(packs_of_gguf(model, cache))
            return ModelCard(name, model.config, found.path, packs, None, None)
        packs = tuple(packs_of(name, cache))
        return ModelCard(name, ModelConfig.open(found.path), found.path, packs, hub_name, alias)

    def record(self) -> dict[str, object]:
        """Plain JSON values; sizes in bytes."""
        return {
            "model": self.name,
            "repo": self.hub_name.repo if self.hub_name else None,
            "revision": self.hub_name.revision if self.hub_name else None,
            "gated": self.alias.gated if self.alias else None,
            "licence": self.alias.licence if self.alias else None,
            "note": self.alias.note if self.alias else "",
            "model_type": self.config.model_type,
            **{field: getattr(self.config, field) for field in _SHAPE},
            "context_tokens": self.config.max_position_embeddings,
            "dtype": self.config.dtype,
            "parameters": self._parameters(),
            "nbytes": {one.value: self._bytes(one) for one in Precision},
            "layer_bytes_per_node": {
                one.value: {str(nodes): self._layer_bytes(one) // nodes for nodes in _NODE_COUNTS}
                for one in Precision
            },
            "path": str(self.folder) if self.folder else None,
            "packs": [str(path) for path in self.packs],
        }

    def lines(self) -> list[tuple[str, str]]:
        """(label, value), what is unknown left out."""
        config, alias = self.config, self.alias
        found = [
            ("model", self.name if self.hub_name is None else f"{self.name} ({self.hub_name})"),
            ("where", str(self.folder) if self.folder else f"not on this computer: tpiedge pull {self.name}"),
            *(("pack", _described(path, self.folder)) for path in self.packs),
        ]
        if alias is not None:
            gate = ", gated: accept it on the model's page and set HF_TOKEN" if alias.gated else ""
            found += [("licence", alias.licence + gate), *((("note", alias.note),) if alias.note else ())]
        found += [
            ("layers", f"{config.num_layers}, {config.hidden_size} wide, FFN {config.intermediate_size}"),
            ("heads", f"{config.num_heads}, KV heads {config.num_kv_heads}, {config.head_dim} numbers each"),
            ("vocabulary", f"{config.vocab_size}"),
            ("context", f"{config.max_position_embeddings} tokens"),
            ("parameters", _count(self._parameters())),
        ]
        return found + [(f"as {one.value}", self._sizes(one)) for one in Precision]

    def _sizes(self, precision: Precision) -> str:
        parts = (
            f"{format_bytes(self._layer_bytes(precision) / nodes)} on each of {nodes}"
            for nodes in _NODE_COUNTS[1:]
        )
        return f"{format_bytes(self._bytes(precision))}; layers: {', '.join(parts)} nodes"

    def _bytes(self, precision: Precision) -> int:
        spec = model_spec(self.config)
        storage = storage_of(precision, spec)
        others = ((spec.embedding, storage.embedding), (spec.head, storage.head))
        return self._layer_bytes(precision) + sum(_nbytes(blob, stored) for blob, stored in others)

    def _layer_bytes(self, precision: Precision) -> int:
        return sum(_nbytes(layer, precision) for layer in model_spec(self.config).layers)

    def _parameters(self) -> int:
        spec = model_spec(self.config)
        return self._layers() + _numbers(spec.embedding) + _numbers(spec.head)

    def _layers(self) -> int:
        return sum(map(_numbers, model_spec(self.config).layers))


def _numbers(blob: BlobSpec) -> int:
    return sum(matrix.rows * matrix.cols for matrix in blob.matrices) + sum(
        vector.length for vector in blob.vectors
    )


def _nbytes(blob: BlobSpec, precision: Precision) -> int:
    """Bytes of the numbers and their scales, without what fills up rows and pages."""
    vectors = sum(vector.length for vector in blob.vectors)
    weights = _numbers(blob) - vectors
    scales = weights // GROUP * 16 if precision.quantised else 0
    return (weights * precision.bits + scales + vectors * precision.of_vectors.bits) // 8


def _described(pack: Path, folder: Path | None) -> str:
    """Its name, unless the card is its own, how exactly it stores what, and where it lies."""
    found = stored_pack(pack)
    size = "damaged" if found.nbytes is None else format_bytes(found.nbytes)
    words = [f"{found.precision or '?'}, {size}, of {sanitised_line(found.source)}"]
    return ", ".join(words if pack == folder else [found.name, *words, str(pack)])


def _alias_of(name: HubName | None) -> Alias | None:
    return next((alias for alias in aliases().values() if name and alias.repo == name.repo), None)


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} billion" if parameters >= 5e8 else f"{parameters / 1e6:.1f} million"
