import errno
import os
from pathlib import Path

import pytest

from tpiedge.local.packing import keep_text_files
from tpiedge.model.config import usual_pooling


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "evil.py").write_text("")
    return folder


def test_only_config_and_chat_template_files_are_kept(tmp_path, source):
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    (source / "additional_chat_templates" / "evil.py").write_text("")
    (source / "chat_template.json").write_text("{}")
    text = tmp_path / "text"
    keep_text_files(source, text)
    kept = {path.relative_to(text).as_posix() for path in text.rglob("*") if path.is_file()}
    assert kept == {"config.json", "chat_template.json", "additional_chat_templates/tool_use.jinja"}


def test_a_pack_keeps_the_pooling(tmp_path, source):
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}')
    keep_text_files(source, tmp_path / "text")
    assert usual_pooling(tmp_path / "text") == "last"


def test_full_disk_leaves_no_partial_text_files(tmp_path, source, monkeypatch):
    def write_bytes(path, data):
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    with pytest.raises(OSError, match="No space left"):
        keep_text_files(source, tmp_path / "text")
    assert list((tmp_path / "text").iterdir()) == []
