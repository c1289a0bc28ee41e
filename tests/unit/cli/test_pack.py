import json
import re
from pathlib import Path

from click.testing import CliRunner

from tests.unit.model.gguf_files import TinyGguf
from tpiedge.cli.models import ls
from tpiedge.cli.pack import import_gguf


def test_a_mixed_file_is_kept_and_its_losses_are_listed(tmp_path: Path) -> None:
    kinds = {"": "Q4_K", "ffn_down": "Q6_K", "attn_k": "Q2_K"}
    file = TinyGguf(hidden=256, head_dim=128, ffn=256, layers=1, kinds=kinds).write(
        tmp_path / "T.Q4_K_M.gguf"
    )
    cache = ["--cache", str(tmp_path / "cache")]
    ended = CliRunner().invoke(import_gguf, [str(file), "--precision", "keep", "--json", *cache])
    assert (ended.exit_code, ended.exception) == (0, None)
    assert json.loads(ended.stdout)["precision"] == dict.fromkeys(("layers", "embedding", "head"), "q4_k")
    listed = CliRunner().invoke(ls, cache).stdout.splitlines()
    assert re.fullmatch(r"T-q4_k: 1 matrix of Q2_K is rounded to q8 \(\d\d dB\)", listed[-1])
    refused = CliRunner().invoke(import_gguf, [str(file), "--precision", "q4_k", *cache])
    assert "'q4_k' is not one of 'keep', 'f32', 'bf16', 'q8', 'q4'" in refused.stderr


def test_pack_without_a_tokenizer_is_told_with_a_command_that_runs_it(tmp_path: Path) -> None:
    file = TinyGguf(layers=1).write(tmp_path / "Tiny.gguf")
    ended = CliRunner().invoke(import_gguf, [str(file), "--cache", str(tmp_path / "cache")])
    assert (ended.exit_code, ended.exception) == (0, None)
    assert "called Tiny-q4: tpiedge run Tiny-q4 --prompt-ids 1,2,3  (it has no tokenizer)" in ended.stderr
