import re
import shutil

import pytest

from tests.process.bad_input.refusal import USER, the_line

# tests/unit/model/test_template.py has many more; here is how the command ends.
HOSTILE = {
    "endless": (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "time or memory|took more than",  # whichever is over first: the processor's time or the clock's
    ),
    "refusal": ("{{ raise_exception('one\nline\tonly') }}", "one line only"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.fault("F3", "an error in one line")
def test_hostile_chat_templates_are_refused(tpiedge, text_model, tmp_path, name):
    template, expected = HOSTILE[name]
    folder = tmp_path / "model"
    shutil.copytree(text_model, folder)
    (folder / "chat_template.jinja").write_text(template)
    ended = tpiedge("run", "--model", folder, "--threads", 1, "--context", 64, stdin="ba be\n")
    assert ended.status == USER
    line = the_line(ended.err)
    assert "chat template" in line
    assert re.search(expected, line), line
    assert ended.out == ""
