"""Checks of refusals: one line, the documented status, no standard output, no partial files."""

import json
import os

USER, RESOURCE = 2, 4
PROGRESS = ("packing ", "loading weights", "looking for masters")


def the_line(err):
    lines = [line for line in err.splitlines() if not line.startswith(PROGRESS)]
    assert len(lines) == 1, err
    assert lines[0].startswith("tpiedge: ")
    assert "Traceback" not in err
    assert "defect of tpiedge" not in err
    return lines[0].removeprefix("tpiedge: ")


def assert_nothing_half_written(*folders):
    for folder in (*folders, os.environ["TPIEDGE_CACHE"]):
        for _, names, files in os.walk(folder):
            assert not [name for name in (*names, *files) if "partial" in name or name.endswith(".lock")]


def change_config(model, **changes):
    path = model / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def run_model(model):
    return ("run", "--model", model, "--prompt-ids", "1,2,3", "--max-tokens", 2)
