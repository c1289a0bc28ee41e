import gzip
import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tpiedge.api.page import page_files

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "tpiedge" / "page"
VENDORED = [PAGE / "vendor", ROOT / "tests" / "browsing" / "vendor"]
SCRIPTS = sorted(PAGE.glob("*.js"))
MOST_BYTES = 150_000
_IMPORT = re.compile(r'(?:from|import)\s*\(?\s*"(\./[^"]+)"')


def imports(path: Path) -> set[Path]:
    return {(PAGE / name).resolve() for name in _IMPORT.findall(path.read_text(encoding="utf-8"))}


def loaded() -> set[str]:
    files = {path.relative_to(PAGE).as_posix() for script in SCRIPTS for path in imports(script)}
    linked = re.findall(r'"page/([^"]+)"', (PAGE / "index.html").read_text(encoding="utf-8"))
    return {"index.html", *files, *linked}


def statically_imported(script: Path) -> set[Path]:
    """Returns the script and what a browser loads with it."""
    needed, found = {script}, set[Path]()
    while needed:
        one = needed.pop()
        found.add(one)
        static = re.sub(r'import\("[^"]+"\)', "", one.read_text(encoding="utf-8"))
        needed |= {(one.parent / name).resolve() for name in _IMPORT.findall(static)} - found
    return found


@pytest.mark.parametrize("kind", ["code.js", "maths.js"])
def test_page_with_one_kind_of_content_stays_below_size_limit(kind: str) -> None:
    """Colours of code and formulas are loaded with the first answer that has some."""
    files, first = page_files()[1], statically_imported(PAGE / "app.js")
    later = {PAGE / name: statically_imported(PAGE / name) - first for name in ("code.js", "maths.js")}
    unused = set().union(*(found for script, found in later.items() if script.name != kind))
    names = loaded() - {path.relative_to(PAGE).as_posix() for path in unused}
    assert sum(len(gzip.compress(files[name])) for name in names) < MOST_BYTES


def test_page_loads_all_of_its_files() -> None:
    assert {path.name for path in PAGE.glob("*.*")} <= loaded()
    used = {name for name in loaded() if name.startswith("vendor/")}
    assert {
        name for name in page_files()[1] if name.endswith(("js", ".css")) and name.startswith("vendor/")
    } == used


def test_static_imports_are_preloaded() -> None:
    """Else a browser would find each module only when it has read the one that imports it."""
    found = statically_imported(PAGE / "app.js")
    first = (PAGE / "index.html").read_text(encoding="utf-8")
    preloaded = set(re.findall(r'(?:modulepreload" href|src)="page/([^"]+)"', first))
    assert preloaded == {path.relative_to(PAGE).as_posix() for path in found}


@pytest.mark.parametrize("folder", VENDORED, ids=["page", "tests"])
def test_vendored_files_match_manifest_and_have_licences(folder: Path) -> None:
    """`tools/vendor_page.py` compares it with npm."""
    libraries = json.loads((folder / "manifest.json").read_text())
    files = {file["path"]: file for library in libraries for file in library["files"]}
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert there == files.keys() | {"manifest.json"}
    for name, file in files.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == file["sha256"], name
    for library in libraries:
        assert library["version"]
        assert library["license"]
        assert any(file["path"].endswith("/LICENSE") for file in library["files"]), library["name"]


def test_page_lines_have_at_most_120_characters() -> None:
    ours = [*SCRIPTS, *PAGE.glob("*.css"), *Path(__file__).parent.glob("*.mjs")]
    long = [path.name for path in ours if any(len(line) > 120 for line in path.read_text().splitlines())]
    assert not long


def test_page_files_name_no_other_host() -> None:
    for path in [*SCRIPTS, *PAGE.glob("*.css"), PAGE / "index.html"]:
        text = path.read_text(encoding="utf-8")
        found = set(re.findall(r"\b\w+://[^\s\"'`]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not found, path.name


def test_texts_are_only_in_texts_js_and_all_used() -> None:
    """Text that a script shows comes from texts.js: between tags there are only values."""
    scripts = {path.name: path.read_text(encoding="utf-8") for path in SCRIPTS}
    texts = scripts.pop("texts.js")
    for name, script in scripts.items():
        shown = re.findall(r">([^<>`${}=;()]*[A-Za-z]{2}[^<>`${}=;()]*)<", script)
        assert not shown, (name, shown)
    everything = "\n".join(scripts.values())
    keys = re.findall(r"^    (\w+):", texts, re.MULTILINE)
    computed = {"api", "admin", "apiWhy", "adminWhy", "temperature", "top_p", "max_tokens", "seed"}
    computed |= {f"{name}Why" for name in computed} | {"apiRenewed", "adminRenewed"}
    unused = {key for key in keys if f".{key}" not in everything} - computed
    assert not unused


_OWN = [*ROOT.glob("configs/models/*"), *ROOT.glob("configs/testbeds/*")]


def test_the_files_and_licences_are_in_the_wheel(tmp_path: Path) -> None:
    source = tmp_path / "source"
    names = ["setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"]
    source.mkdir()
    for name in names:
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "configs", source / "configs")
    (source / "configs" / "own.toml").write_text("a user's settings, with secrets")
    shutil.copytree(PAGE, source / "tpiedge" / "page")
    (source / "tpiedge" / "__init__.py").touch()
    command = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", tmp_path / "built"]
    subprocess.run(command, cwd=source, check=True, timeout=100, capture_output=True)
    there = {path.relative_to(tmp_path / "built" / "tpiedge" / "page") for path in _files(tmp_path / "built")}
    assert there == {path.relative_to(PAGE) for path in _files(ROOT)}
    configs = tmp_path / "built" / "tpiedge" / "configs"
    assert {*configs.rglob("*.*")} == {configs / path.relative_to(ROOT / "configs") for path in _OWN}


def _files(root: Path) -> list[Path]:
    return [path for path in (root / "tpiedge" / "page").rglob("*") if path.is_file()]
