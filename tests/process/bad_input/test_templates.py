"""Chat templates that are hostile, broken or missing."""

import shutil

import pytest

from tests.process.bad_input.refusal import USER, the_line
from tests.process.models import TEMPLATE

HOSTILE = {
    "endless": (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "time or memory",
    ),
    "flood": ("{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}", "characters"),
    "memory": ("{% set x = 'x' * 10 ** 10 %}{{ x }}", "memory"),
    "escape": ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
    "import": ("{% import 'os' as os %}{{ os }}", "failed"),
    "broken": ("{% for %}", "failed"),
    "refusal": ("{{ raise_exception('one\nline\tonly') }}", "one line only"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_chat_templates(tpiedge, text_model, tmp_path, name):
    template, expected = HOSTILE[name]
    folder = tmp_path / "model"
    shutil.copytree(text_model, folder)
    (folder / "chat_template.jinja").write_text(template)
    ended = tpiedge("run", "--model", folder, "--threads", 1, "--context", 64, stdin="ba be\n")
    assert ended.status == USER
    line = the_line(ended.err)
    assert "chat template" in line
    assert expected in line
    assert ended.out == ""


def test_a_model_without_a_template_does_not_chat(fails, text_model, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(text_model, folder)
    (folder / "chat_template.jinja").unlink()
    assert "has no chat template" in fails("run", "--model", folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "tokenizer_config.json").write_text("{")
    assert "tokenizer_config.json" in fails("run", "--model", folder)
