from pathlib import Path

from click.testing import CliRunner

from tests.unit.model.gguf_files import TinyGguf
from tpiedge.cli.pack import import_gguf


def test_pack_without_a_tokenizer_is_told_with_a_command_that_runs_it(tmp_path: Path) -> None:
    file = TinyGguf(layers=1).write(tmp_path / "Tiny.gguf")
    ended = CliRunner().invoke(import_gguf, [str(file), "--cache", str(tmp_path / "cache")])
    assert (ended.exit_code, ended.exception) == (0, None)
    assert "called Tiny-q4: tpiedge run Tiny-q4 --prompt-ids 1,2,3  (it has no tokenizer)" in ended.stderr
