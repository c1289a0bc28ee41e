import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import huggingface_hub
import pytest

from tests.hub_server import Hub, Repo, commit_of, running_hub
from tpiedge.errors import HubError, TpiedgeError, UserError
from tpiedge.model.hub import PullReport, pull
from tpiedge.model.presets import preset
from tpiedge.model.source import HubCache, HubName, NotPulled, parse_hub_name, resolve_model
from tpiedge.pack.files import lock_target

NAME = "org/tiny"
WEIGHTS = bytes(range(256)) * 1200
FILES = {
    "config.json": json.dumps(preset("tinyllama")).encode(),
    "generation_config.json": b"{}",
    "tokenizer.json": b'{"version": "1.0"}',
    "chat_template.jinja": b"{{ messages }}",
    "README.md": b"# tiny",
    "pytorch_model.bin": b"\x80\x04 a pickle",
    "original/params.json": b"{}",
    "model.safetensors": WEIGHTS,
}
TAKEN = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "chat_template.jinja",
    "model.safetensors",
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("TPIEDGE_CACHE", str(tmp_path / "cache"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        # The developer's own token is not for tests.
        monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
        monkeypatch.setattr("time.sleep", lambda _: None)  # between attempts
        monkeypatch.setattr("tpiedge.model.hub._CHUNK", 10_000)
        hub.repos[NAME] = Repo(dict(FILES))
        yield hub


def fetch(name: str = NAME, progress: Callable[[int, int], None] = lambda done, total: None) -> PullReport:
    hub_name = parse_hub_name(name)
    assert hub_name is not None
    return pull(hub_name, HubCache(), progress)


def refusal(name: str = NAME, kind: type[TpiedgeError] = UserError) -> str:
    with pytest.raises(kind) as raised:
        fetch(name)
    assert type(raised.value) is kind
    assert str(raised.value).isprintable()
    return str(raised.value)


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_pull_fetches_only_weights_configs_and_templates(hub: Hub):
    seen = []
    report = fetch(progress=lambda done, total: seen.append((done, total)))
    assert names_in(report.folder) == TAKEN
    assert all((report.folder / name).read_bytes() == FILES[name] for name in TAKEN)
    assert report.fetched == sum(len(FILES[name]) for name in TAKEN)
    assert seen[-1] == (report.fetched, report.fetched)
    assert report.folder.name == commit_of("first")


def test_pulled_model_is_found_offline(hub: Hub):
    report = fetch()
    before = len(hub.requests)
    assert resolve_model(NAME) == report.folder
    assert resolve_model(f"{NAME}@{report.folder.name}") == report.folder
    assert [(str(found.name), found.nbytes) for found in HubCache().pulled()] == [(NAME, report.fetched)]
    assert len(hub.requests) == before
    theirs = huggingface_hub.snapshot_download(NAME, cache_dir=HubCache().folder, local_files_only=True)
    assert Path(theirs) == report.folder


def test_moved_branch_fetches_only_changed_files(hub: Hub):
    fetch()
    hub.repos[NAME].revisions["main"] = commit_of("second")
    hub.repos[NAME].files["generation_config.json"] = b'{"eos_token_id": 2}'
    report = fetch()
    assert report.fetched == len(b'{"eos_token_id": 2}')
    assert resolve_model(NAME).name == commit_of("second")
    assert weights_of(report) == WEIGHTS


def test_weights_outside_the_index_are_not_fetched(hub: Hub):
    parts = {f"model-0000{part}-of-00002.safetensors": bytes([part]) * 5000 for part in (1, 2)}
    index = {"weight_map": {f"tensor{part}": name for part, name in enumerate(parts)}}
    files = {name: data for name, data in FILES.items() if name != "model.safetensors"}
    index_file = {"model.safetensors.index.json": json.dumps(index).encode()}
    hub.repos[NAME] = Repo(files | parts | index_file | {"consolidated.safetensors": b"x" * 9999})
    report = fetch()
    assert names_in(report.folder) == TAKEN - {"model.safetensors"} | set(parts) | set(index_file)


def weights_of(report: PullReport) -> bytes:
    return (report.folder / "model.safetensors").read_bytes()


def break_off(hub: Hub) -> None:
    """Leaves 70,000 bytes of the weights."""
    hub.cuts["model.safetensors"] = [70_000] + [0] * 5
    assert "type the same command again to resume" in refusal(kind=HubError)


def test_a_cut_connection_resumes_where_it_was_cut(hub: Hub):
    hub.cuts["model.safetensors"] = [100_000, 50_000]
    report = fetch()
    assert hub.ranges("model.safetensors") == [None, "bytes=100000-", "bytes=150000-"]
    assert weights_of(report) == WEIGHTS
    assert report.fetched == sum(len(FILES[name]) for name in TAKEN)


def test_next_pull_resumes_partial_download(hub: Hub):
    break_off(hub)
    with pytest.raises(UserError, match=f"tpiedge pull {NAME}"):
        resolve_model(NAME)
    hub.requests.clear()
    report = fetch()
    assert hub.ranges("model.safetensors") == ["bytes=70000-"]
    assert report.fetched == len(WEIGHTS) - 70_000
    assert weights_of(report) == WEIGHTS


def test_next_pull_restarts_download_after_status_416(hub: Hub):
    break_off(hub)
    hub.statuses["model.safetensors"] = [416]
    assert "pull again later" in refusal(kind=HubError)
    assert weights_of(fetch()) == WEIGHTS


def test_pull_retries_after_status_429(hub: Hub):
    hub.statuses["model.safetensors"] = [429]
    assert weights_of(fetch()) == WEIGHTS


def test_server_without_ranges_resends_whole_file(hub: Hub):
    hub.cuts["model.safetensors"] = [70_000]
    hub.ignores_ranges = True
    seen: list[int] = []
    report = fetch(progress=lambda done, total: seen.append(total - done))
    assert weights_of(report) == WEIGHTS
    assert seen[-1] == 0
    assert sum(now > before for before, now in pairwise(seen)) == 1


def test_bytes_that_differ_from_the_hash_are_deleted(hub: Hub):
    break_off(hub)
    (partial,) = HubCache().entry(HubName(NAME)).glob("blobs/*.incomplete")
    partial.write_bytes(b"z" * 70_000)
    assert "its hash differs" in refusal(kind=HubError)
    assert not partial.exists()
    assert weights_of(fetch()) == WEIGHTS


def test_concurrent_pull_of_same_model_is_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tpiedge.model.hub._LOCK_S", 0.0)
    entry = HubCache().entry(HubName(NAME))
    entry.mkdir(parents=True)
    with lock_target(entry, 0.0):
        assert "another process is writing" in refusal()
    fetch()


@pytest.mark.parametrize(
    ("token", "refused", "words"),
    [(None, "gated", "you have set no HF_TOKEN"), ("hf_secret", "denied", "has no access yet")],
)
def test_gated_model_refusal_names_page_and_hf_token(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, token: str | None, refused: str, words: str
):
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: token)
    setattr(hub.repos[NAME], refused, True)
    message = refusal()
    assert f"accept the licence at {hub.endpoint}/{NAME} and set HF_TOKEN" in message
    assert words in message
    assert "hf_secret" not in message


def test_hf_token_is_not_sent_to_storage_host(hub: Hub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_secret")
    hub.storage = hub.endpoint.replace("127.0.0.1", "localhost")
    fetch()
    told = {path.split("/")[1]: token for (path, _), token in zip(hub.requests, hub.tokens, strict=True)}
    assert told == {"api": "Bearer hf_secret", "org": "Bearer hf_secret", "cdn": None}


@pytest.mark.parametrize(
    ("name", "named"),
    [("org/none", "has no model org/none"), (f"{NAME}@v9", f"{NAME} has no revision 'v9'")],
)
def test_missing_model_or_revision_is_named(hub: Hub, name: str, named: str):
    assert named in refusal(name)


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"config.json": b"{}", "pytorch_model.bin": b"x"}, "pickle files (.bin) can run code"),
        (
            {"tiny-Q4_0.gguf": b"x", "a.gguf": b"xx"},
            "only GGUF files: give one of org/tiny:Q4_0 (1 B), org/tiny:a (2 B)",
        ),
        ({"config.json": b"{}", "tiny.gguf": b"x"}, "only GGUF files: give one of org/tiny:tiny (1 B)"),
        ({"config.json": b"{}"}, r"neither model.safetensors nor model.safetensors.index.json"),
        ({"model.safetensors": b"x"}, "has no config.json"),
        ({"config.json": b'{"model_type": "gpt2"}', "model.safetensors": b"x"}, "config.json of org/tiny"),
        (
            {"config.json": FILES["config.json"], "model.safetensors.index.json": b"{}"},
            f"{NAME} cannot be used: model.safetensors.index.json: weight_map is missing or empty",
        ),
    ],
)
def test_unsupported_model_is_refused_before_weights_download(hub: Hub, files: dict[str, bytes], named: str):
    hub.repos[NAME] = Repo(files)
    message = refusal()
    assert named in message
    assert not any(word in message for word in (".partial", "download"))
    assert not any(path.endswith((".bin", ".gguf", ".safetensors")) for path, _ in hub.requests)


@pytest.mark.parametrize(
    "bad", ["../evil.safetensors", "/etc/evil.json", "a/../../evil.json", "a\\b.json", "a\nb"]
)
def test_a_name_outside_of_the_repository_is_refused(hub: Hub, bad: str, tmp_path: Path):
    hub.repos[NAME].files[bad] = b"evil"
    assert "nothing was fetched" in refusal()
    assert not list(tmp_path.rglob("*evil*"))


def test_a_copy_stays_usable_offline_until_it_is_removed(hub: Hub, monkeypatch: pytest.MonkeyPatch):
    report = fetch()
    with running_hub() as gone:
        pass
    monkeypatch.setenv("HF_ENDPOINT", gone.endpoint)
    assert "stays usable" in refusal(kind=HubError)
    assert resolve_model(NAME) == report.folder
    HubCache().remove(HubName(NAME))
    assert HubCache().pulled() == []
    assert HubCache().snapshot(HubName(NAME)) is None


GGUF = "org/tiny-GGUF"
PART = "Q8_0/tiny-Q8_0-0000{}-of-00002.gguf"
GGUF_FILES = {
    "tiny-Q4_K_M.gguf": b"GGUF" * 1000,
    PART.format(1): b"first" * 10_000,
    PART.format(2): b"second" * 10_000,
    "tiny-IQ2_M.gguf": b"x",
    "mmproj-tiny-f16.gguf": b"x",
    "a-Q5_0.gguf": b"x",
    "b-Q5_0.gguf": b"x",
    "README.md": b"# tiny",
}


@pytest.fixture
def gguf_hub(hub: Hub) -> Hub:
    hub.repos[GGUF] = Repo(dict(GGUF_FILES), architecture="llama")
    return hub


def fetched_files(hub: Hub) -> set[str]:
    return {path.split("/", 4)[4] for path, _ in hub.requests if path.startswith("/cdn/")}


@pytest.mark.parametrize("name", [f"{GGUF}:Q4_K_M", f"hf.co/{GGUF}:q4_k_m", f"{GGUF}:tiny-Q4_K_M.gguf"])
def test_gguf_file_is_pulled_by_its_tag(gguf_hub: Hub, name: str):
    report = fetch(name)
    assert fetched_files(gguf_hub) == {"tiny-Q4_K_M.gguf"}
    assert resolve_model(name) == report.folder / "tiny-Q4_K_M.gguf"
    assert resolve_model(name).read_bytes() == GGUF_FILES["tiny-Q4_K_M.gguf"]
    assert report.left_out == ("mmproj-tiny-f16.gguf",)
    with pytest.raises(NotPulled, match=f"tpiedge pull {GGUF}:Q8_0"):
        resolve_model(f"{GGUF}:Q8_0")
    assert fetch(name).fetched == 0
    (found,) = HubCache().pulled()
    assert parse_hub_name(name) == found.name
    assert found.nbytes == 4000
    HubCache().remove(found.name)
    assert HubCache().pulled() == []


def test_split_gguf_resumes_in_its_second_part(gguf_hub: Hub):
    gguf_hub.cuts[PART.format(2)] = [20_000] + [0] * 5
    assert "type the same command again" in refusal(f"{GGUF}:Q8_0", HubError)
    with pytest.raises(NotPulled):
        resolve_model(f"{GGUF}:Q8_0")
    gguf_hub.requests.clear()
    asked: list[int] = []
    name = parse_hub_name(f"{GGUF}:Q8_0")
    assert name is not None
    report = pull(name, HubCache(), lambda done, total: None, asked.append)
    assert fetched_files(gguf_hub) == {PART.format(2)}
    assert gguf_hub.ranges(PART.format(2)) == ["bytes=20000-"]
    assert asked == [40_000] == [report.fetched]
    first = resolve_model(f"{GGUF}:Q8_0")
    assert first.name == "tiny-Q8_0-00001-of-00002.gguf"
    assert [path.read_bytes() for path in sorted(first.parent.iterdir())] == [
        b"first" * 10_000,
        b"second" * 10_000,
    ]


def test_gguf_files_and_checkpoint_of_one_repository_are_separate(hub: Hub):
    hub.repos[NAME] = Repo({**FILES, **GGUF_FILES})
    checkpoint, file = fetch(NAME), fetch(f"{NAME}:Q4_K_M")
    assert names_in(checkpoint.folder) == TAKEN
    assert names_in(file.folder) == {"tiny-Q4_K_M.gguf"}
    assert resolve_model(NAME) == checkpoint.folder
    assert [str(one.name) for one in HubCache().pulled()] == [NAME, f"{NAME}:Q4_K_M"]


@pytest.mark.parametrize(("tag", "architecture", "words"), [
    ("Q5_0", "llama", f"several GGUF files for Q5_0: give one of {GGUF}:a-Q5_0, {GGUF}:b-Q5_0"),
    ("Q6_K", "llama", f"no GGUF file for Q6_K: give one of {GGUF}:a-Q5_0 (1 B), {GGUF}:b-Q5_0 (1 B), {GGUF}:Q4_K_M ("),
    ("IQ2_M", "llama", "tpiedge cannot read IQ2_M: give one of "),
    ("mmproj-tiny-f16", "llama", "no GGUF file for MMPROJ-TINY-F16"),
    ("Q8_0", "glm4", f"{GGUF}:Q8_0: the architecture is 'glm4'; supported are gemma2, gemma3, gemma4, gpt-oss, "),
])  # fmt: skip
def test_gguf_that_cannot_run_is_refused_before_its_download(
    gguf_hub: Hub, tag: str, architecture: str, words: str
):
    gguf_hub.repos[GGUF].architecture = architecture
    assert words in refusal(f"{GGUF}:{tag}")
    assert not fetched_files(gguf_hub)


def test_declined_pull_fetches_nothing(gguf_hub: Hub):
    def decline(nbytes: int) -> None:
        raise UserError(f"not {nbytes} bytes")

    name = parse_hub_name(f"{GGUF}:Q4_K_M")
    assert name is not None
    with pytest.raises(UserError, match="not 4000 bytes"):
        pull(name, HubCache(), lambda done, total: None, decline)
    assert not fetched_files(gguf_hub)
    assert not HubCache().entry(name).exists()
