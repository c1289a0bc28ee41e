import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tpiedge.errors import UserError
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.model.config import ModelConfig
from tpiedge.model.spec import model_spec
from tpiedge.model.template import ChatTemplate
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.pack.source import TensorSource
from tpiedge.pack.specs import Precision
from tpiedge.pack.writer import write_pack

INDEX = "model.safetensors.index.json"
READERS: dict[str, Callable[[Path], object]] = {
    "config.json": ModelConfig.open,
    "generation_config.json": ModelConfig.open,
    "model.safetensors": Checkpoint.open,
    INDEX: Checkpoint.open,
    "tokenizer.json": Tokenizer.open,
    "chat_template.jinja": lambda folder: ChatTemplate.open(folder, {}),
    "tokenizer_config.json": lambda folder: ChatTemplate.open(folder, {}),
}


@pytest.fixture
def whole(folder: Path, make_safetensors: Callable[..., bytes]) -> Path:
    """Returns a folder with all that the small model needs, and a tensor that no model uses."""
    shapes = model_spec(ModelConfig.open(folder)).source_shapes
    tensors = {name: ("F32", list(shape), 4 * math.prod(shape)) for name, shape in shapes.items()}
    tensors["../../evil"] = ("F32", [1], 4)
    (folder / "model.safetensors").write_bytes(make_safetensors(tensors))
    return folder


@pytest.fixture
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file elsewhere, that would do for any of a model's."""
    path = tmp_path_factory.mktemp("elsewhere") / "secret"
    path.write_text('{"chat_template": "x"}')
    return path


@pytest.mark.fault("F2", "a link that leads out of the folder is refused by name")
@pytest.mark.parametrize("name", list(READERS))
@pytest.mark.parametrize("relative", [True, False], ids=["relative", "absolute"])
def test_link_out_of_folder_is_refused(folder: Path, secret: Path, name: str, relative: bool) -> None:
    path = folder / name
    path.unlink(missing_ok=True)
    path.symlink_to(Path("..", secret.relative_to(folder.parent)) if relative else secret)
    with pytest.raises(UserError, match=f"{re.escape(name)} links to a file outside of the model's folder"):
        READERS[name](folder)


@pytest.mark.parametrize("name", list(READERS))
def test_snapshot_link_outside_its_own_blobs_is_refused(
    tmp_path: Path, small_config: dict[str, Any], secret: Path, name: str
) -> None:
    """Links to another model's blobs or into a folder of its own are refused."""
    entry = tmp_path / "models--org--name"
    snapshot = entry / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (entry / "blobs").mkdir()
    for blobs in (tmp_path / "models--org--other" / "blobs", entry / "blobs" / "deep", entry / "refs"):
        blobs.mkdir(parents=True)
        (blobs / "1").write_bytes(secret.read_bytes())
        (snapshot / "config.json").unlink(missing_ok=True)
        (snapshot / name).unlink(missing_ok=True)
        if name != "config.json":
            (entry / "blobs" / "config").write_text(json.dumps(small_config))
            (snapshot / "config.json").symlink_to("../../blobs/config")
        (snapshot / name).symlink_to(blobs / "1")
        with pytest.raises(UserError, match="links to a file outside"):
            READERS[name](snapshot)


@pytest.mark.fault("F2", "names are no paths")
def test_tensor_names_never_become_paths(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    out = tmp_path_factory.mktemp("out") / "packs" / "pack"
    checkpoint = Checkpoint.open(whole)
    source = TensorSource(checkpoint.tensors)
    write_pack(model_spec(checkpoint.config), source, Precision.F32, out)
    source.close()
    made = [str(path.relative_to(out)) for path in out.rglob("*")]
    assert all(re.fullmatch(r"manifest\.json|blobs(/[0-9a-f]{64}(\.hashes)?)?", name) for name in made)
    assert [path.name for path in out.parent.parent.rglob("*evil*")] == []


_AUDITED = """
import sys
from pathlib import Path
folder = str(Path(sys.argv[1]).resolve())
opened = set()
sys.addaudithook(lambda event, args: opened.add(str(args[0])) if event == "open" else None)
sys.path.insert(0, folder)  # as for somebody who starts Python there
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.model.spec import model_spec
from tpiedge.model.template import ChatTemplate
from tpiedge.model.tokenizer import Tokenizer
checkpoint = Checkpoint.open(Path(folder))
checkpoint.check(model_spec(checkpoint.config))
Tokenizer.open(Path(folder))
ChatTemplate.open(Path(folder), {})
print(sorted(Path(name).name for name in opened if name.startswith(folder)))
"""


def test_pickles_and_remote_code_are_not_even_opened(whole: Path, small_config: dict[str, Any]) -> None:
    """Beside safetensors files, and named in every place where transformers looks for code."""
    code = {
        "AutoConfig": "evil.Evil",
        "AutoModelForCausalLM": "evil.Evil",
        "AutoTokenizer": ["evil.Evil", "evil.Evil"],
    }
    owned = f"open({str(whole / 'owned')!r}, 'w')"
    (whole / "config.json").write_text(
        json.dumps(small_config | {"auto_map": code, "trust_remote_code": True})
    )
    (whole / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": code, "tokenizer_class": "evil.Evil", "chat_template": "x"})
    )
    (whole / "tokenizer.json").write_text(
        '{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}'
    )
    for name in ("evil.py", "__init__.py", "modeling_llama.py", "tokenization_llama.py", "setup.py"):
        (whole / name).write_text(owned)
    for name in ("pytorch_model.bin", "model.pt", "training_args.bin", "model.pkl"):
        (whole / name).write_bytes(b"cbuiltins\nexec\n(S" + repr(owned).encode() + b"\ntR.")
    done = subprocess.run(
        [sys.executable, "-c", _AUDITED, str(whole)], capture_output=True, text=True, check=True, cwd=whole
    )
    assert done.stdout.strip() == str(
        ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    )
    assert not (whole / "owned").exists()
