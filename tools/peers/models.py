"""One model in the form that each contestant reads, made once in a work folder: the same weights for all."""

import sys
from pathlib import Path

from tpiedge.errors import UserError

from .gguf import write_gguf
from .install import NotInstalled, checked
from .random_gguf import write_random_gguf

SHAPES = {
    "1.1b": "tinyllama",
    "7b": "llama2-7b",
    "8b": "llama3-8b",
    "gemma3-1b": "gemma3-1b",
    "phi4-mini": "phi4-mini-3.8b",
    "gemma4-e2b": "gemma4-e2b",
    "30b-a3b": "qwen3-30b-a3b",
    "gpt-oss-20b": "gpt-oss-20b",
    "gemma4-26b-a4b": "gemma4-26b-a4b",
}
"""Shape of random weights -> the preset."""
MIXTURES = ("30b-a3b", "gpt-oss-20b", "gemma4-26b-a4b")
"""Shapes with experts."""
UNREPEATED = ("gemma4-e2b", *MIXTURES)
"""Shapes whose layers differ, or whose routers would choose alike if layers were repeated."""
PRECISIONS = ("q4", "q8", "bf16")

DRIVERS = Path(__file__).parent / "drivers"
TPIEDGE = Path(sys.executable).with_name("tpiedge")
_TOOLS = Path(__file__).parents[1]


def random_pack(shape: str, precision: str) -> list[str]:
    """Returns the command that makes a pack, without its --out. Layers are repeated where that changes nothing."""
    repeated = [] if shape in UNREPEATED else ["--distinct-layers", "2"]
    return [str(TPIEDGE), "pack", "--random", SHAPES[shape], *repeated, "--precision", precision]


class Models:
    """Below `folder`, from `checkpoint`; without one, a random one in the shape of `preset` in bf16.

    Each method makes what it returns where that is missing; a half-made form is made again. Raises NotInstalled
    where a step fails.
    """

    def __init__(self, folder: Path, checkpoint: Path | None, preset: str = "tinyllama") -> None:
        self._folder = folder
        self._given = checkpoint
        self._preset = preset
        if checkpoint is not None and not (checkpoint / "config.json").is_file():
            raise UserError(f"{checkpoint} is no checkpoint: it has no config.json")

    def checkpoint(self) -> Path:
        if self._given:
            return self._given
        folder = self._folder / self.name
        if not folder.exists():
            tool = str(_TOOLS / "make_checkpoint.py")
            checked([sys.executable, tool, "--preset", self._preset, "--dtype", "bf16", str(folder)])
        return folder

    @property
    def name(self) -> str:
        """Returns the first part of each form's name."""
        return self._given.name if self._given else f"{self._preset}-bf16"

    def weights(self) -> list[Path]:
        """The files of tensors by whose size limits are parts of the model."""
        return sorted(self.checkpoint().glob("*.safetensors"))

    def nbytes(self) -> int:
        return sum(path.stat().st_size for path in self.weights())

    def pack(self) -> Path:
        folder = self._form("pack")
        if not (folder / "manifest.json").exists():
            checked([str(TPIEDGE), "pack", str(self.checkpoint()), "--out", str(folder)])
        return folder

    def gguf(self) -> Path:
        path = self._form("gguf")
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_gguf(self.checkpoint(), path)
        return path

    def offload(self, python: Path) -> Path:
        """Makes the form of accelerate's disk_offload: a file per tensor."""
        return self._by_driver(python, "accelerate_disk.py", "offload")

    def split(self, python: Path) -> Path:
        """Makes AirLLM's form: a file per layer."""
        return self._by_driver(python, "airllm_stream.py", "airllm")

    def _by_driver(self, python: Path, driver: str, name: str) -> Path:
        folder = self._form(name)
        done = folder / "complete"
        if not done.exists():
            folder.mkdir(parents=True, exist_ok=True)
            checked([str(python), str(DRIVERS / driver), "prepare", str(self.checkpoint()), str(folder)])
            done.touch()
        return folder

    def _form(self, kind: str) -> Path:
        return self._folder / f"{self.name}.{kind}"


class RandomModels(Models):
    """Quantised weights in the shape of `preset`, random in each form: equal in bits, not in values."""

    def __init__(self, folder: Path, preset: str, precision: str) -> None:
        super().__init__(folder, None, preset)
        self._precision = precision

    @property
    def name(self) -> str:
        return f"{self._preset}-{self._precision}"

    def checkpoint(self) -> Path:
        raise NotInstalled(f"it reads no {self._precision} weights")

    def weights(self) -> list[Path]:
        return [self.gguf()]

    def pack(self) -> Path:
        folder = self._form("pack")
        if not (folder / "manifest.json").exists():
            random = ["--random", self._preset, "--precision", self._precision]
            checked([str(TPIEDGE), "pack", *random, "--out", str(folder)])
        return folder

    def gguf(self) -> Path:
        path = self._form("gguf")
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_random_gguf(self._preset, self._precision, path)
        return path
