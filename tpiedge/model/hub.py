"""Pulls (downloads) a model from Hugging Face's hub, resumes broken transfers and checks hashes. The client,
huggingface_hub, is imported when a pull begins.

The client makes all requests, with its own settings (`HF_ENDPOINT`, `HF_TOKEN`, ...). The client deletes bytes of
failed calls and checks no hash, so this module writes the files. Listings are untrusted.

Laws: 1. A file appears under its name only with the right size and hash. 2. Received bytes stay in `NAME.incomplete`.
The next transfer asks only for missing bytes.
"""

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

from tpiedge.errors import HubError, TpiedgeError, UserError
from tpiedge.model.checkpoint import INDEX, SINGLE, weight_map
from tpiedge.model.config import MAX_CONFIG_BYTES, POOLING_FILE, POOLING_FOLDER, ModelConfig
from tpiedge.model.folder import TEXT_FILES, read_json
from tpiedge.model.gguf.config import ARCHITECTURES
from tpiedge.model.gguf.names import chosen_gguf, models_in, offered, projectors
from tpiedge.model.quantisation import OLD_FILES
from tpiedge.model.source import HubCache, HubName
from tpiedge.model.template import ADDITIONAL_TEMPLATES
from tpiedge.pack.files import check_free_space, explain_write_errors, lock_target
from tpiedge.progress import ProgressCallback
from tpiedge.sanitise import quote, sanitised_line

_ENDPOINT = "https://huggingface.co"
_LOCK_S = 5.0
_CHUNK = 1 << 20  # bytes that a broken transfer may lose
_ATTEMPTS = 6  # in a row without progress
_PAUSE_S = 1.0

_POOLING = f"{POOLING_FOLDER}/{POOLING_FILE}"
_TEXTS = (_POOLING, *TEXT_FILES, "tokenizer.model", *OLD_FILES, INDEX)
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")
_TEMPLATE = re.compile(rf"{ADDITIONAL_TEMPLATES}/{_PLAIN.pattern}\.jinja")
_GGUF = re.compile(rf"(?:{_PLAIN.pattern}/)?{_PLAIN.pattern}\.gguf", re.IGNORECASE)
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_MAX_FILES = 100_000


@dataclass(frozen=True)
class _RemoteFile:
    name: str
    size: int
    digest: str  # sha256, or git's sha1 of a blob (40 digits)


@dataclass(frozen=True)
class PullReport:
    """`folder` is named by the commit. `fetched` counts bytes. `left_out` has files for images, not fetched."""

    folder: Path
    fetched: int
    left_out: tuple[str, ...] = ()


def pull(
    name: HubName,
    cache: HubCache,
    progress: ProgressCallback,
    agree: Callable[[int], object] = lambda _: None,
) -> PullReport:
    """Fetches missing files. `progress` gets the counts of fetched bytes and of bytes to fetch. Before the first
    file, `agree` gets the count of bytes to fetch; it may raise. Raises UserError, DiskFull, HubError."""
    found = cache.snapshot(name)
    if found is not None and found.name == name.revision:  # a commit never changes
        return PullReport(found, 0)
    return _Pull(name, cache.entry(name), progress, agree).run(found is not None)


class _BrokeOff(HubError):
    """An interrupted transfer: another attempt may succeed."""


class _Pull:
    def __init__(
        self, name: HubName, entry: Path, progress: ProgressCallback, agree: Callable[[int], object]
    ) -> None:
        self._name = name
        self._entry = entry
        self._progress = progress
        self._agree = agree
        self._endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or _ENDPOINT
        if not self._endpoint.startswith(("https://", "http://")):
            raise UserError(f"HF_ENDPOINT is {quote(self._endpoint)}: write it like {_ENDPOINT}")
        self._token = _hub().get_token()
        self._commit = ""
        self._files: Mapping[str, _RemoteFile] = {}
        self._done = self._total = 0

    def run(self, have_older: bool) -> PullReport:
        self._commit, self._files = self._listing(have_older)
        left_out = tuple(projectors(self._files)) if self._name.quant else ()
        if not self._folder.is_dir():
            self._expect([*self._texts(), *self._all_weights()])
            self._agree(self._total)
        with explain_write_errors(self._entry, sum(file.size for file in self._all_weights())):
            (self._entry / "blobs").mkdir(parents=True, exist_ok=True)
            with lock_target(self._entry, _LOCK_S):
                return PullReport(self._snapshot(), self._done, left_out)

    @property
    def _sizes(self) -> dict[str, int]:
        return {name: file.size for name, file in self._files.items()}

    @property
    def _folder(self) -> Path:
        return self._entry / "snapshots" / self._commit

    def _snapshot(self) -> Path:
        folder = self._folder
        if not folder.is_dir():
            small = self._texts()
            self._expect([*small, *self._all_weights()])
            staging = folder.with_name(f"{self._commit}.partial")
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True)
            self._fetch(small, staging)
            if not self._name.quant:  # a model that cannot run is refused before its weights are fetched
                config = read_json(staging, "config.json", MAX_CONFIG_BYTES)
                ModelConfig.from_huggingface(config, f"config.json of {self._name.repo}")
            weights = self._weights(staging)
            self._expect(weights)
            check_free_space(self._entry, (self._total - self._done) * 105 // 100)
            self._fetch(weights, staging)
            staging.rename(folder)
        if self._name.revision != self._commit:
            ref = self._entry / "refs" / self._name.revision
            ref.parent.mkdir(parents=True, exist_ok=True)
            partial = ref.with_name(f".{ref.name}.partial")
            partial.write_text(self._commit, encoding="ascii")
            partial.replace(ref)
        return folder

    def _places(self, file: _RemoteFile) -> tuple[Path, Path]:
        blob = self._entry / "blobs" / file.digest
        return blob, blob.with_name(f"{blob.name}.incomplete")

    def _expect(self, files: Iterable[_RemoteFile]) -> None:
        places = [(file, *self._places(file)) for file in files]
        missing = (file.size - _size(partial) for file, blob, partial in places if not blob.exists())
        self._total = self._done + sum(max(0, nbytes) for nbytes in missing)

    def _fetch(self, files: list[_RemoteFile], staging: Path) -> None:
        for file in files:
            blob, partial = self._places(file)
            if not blob.exists():
                self._complete(file, partial)
                if _size(partial) != file.size or _digest(partial, file) != file.digest:
                    partial.unlink()
                    raise HubError(
                        f"{file.name} arrived damaged (its hash differs) and was deleted: pull again"
                    )
                partial.replace(blob)
            link = staging / (PurePosixPath(file.name).name if self._name.quant else file.name)
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(os.path.relpath(blob, link.parent))

    def _advance(self, nbytes: int) -> None:
        self._done = max(0, self._done + nbytes)
        self._progress(self._done, self._total)

    def _texts(self) -> list[_RemoteFile]:
        repo = self._name.repo
        if self._name.quant:
            return []
        if not any(name.endswith(".safetensors") for name in self._files) and models_in(self._files):
            raise UserError(f"{repo} has only GGUF files: {offered(repo, self._sizes)}")
        if "config.json" not in self._files:
            raise UserError(f"{repo} has no config.json: it is not a model in the Hugging Face format")
        if SINGLE not in self._files and INDEX not in self._files:
            lacks = f"{repo} has neither {SINGLE} nor {INDEX}"
            raise UserError(
                f"{lacks}; pickle files (.bin) can run code and are never fetched: look for a safetensors version of "
                "it, or convert it in Python with transformers: "
                f"AutoModelForCausalLM.from_pretrained('{repo}').save_pretrained('FOLDER') and the same with "
                "AutoTokenizer, then give --model FOLDER"
            )
        chosen = [file for name, file in self._files.items() if name in _TEXTS or _TEMPLATE.fullmatch(name)]
        for file in chosen:
            if file.size > 256_000_000:
                raise UserError(f"{repo}: {file.name} has {file.size} bytes; no model needs as many")
        return chosen

    def _all_weights(self) -> list[_RemoteFile]:
        if self._name.quant:
            return [self._files[name] for name in chosen_gguf(self._name.repo, self._name.quant, self._sizes)]
        if SINGLE in self._files:
            return [self._files[SINGLE]]
        weights = {name: file for name, file in self._files.items() if name.endswith(".safetensors")}
        shards = [file for name, file in weights.items() if _SHARD.fullmatch(name)]
        return shards or [*weights.values()]

    def _weights(self, staging: Path) -> list[_RemoteFile]:
        if self._name.quant or SINGLE in self._files:
            return self._all_weights()
        try:
            names = sorted(set(weight_map(staging).values()))
        except UserError as error:  # without the temporary path and the advice to download again
            words = str(error).replace(f"{staging}{os.sep}", "").partition(";")[0]
            raise UserError(f"{self._name.repo} cannot be used: {words}") from None
        for name in names:
            if name not in self._files:
                raise UserError(f"{self._name.repo}: {INDEX} names {quote(name)}, which the repository lacks")
        return [self._files[name] for name in names]

    def _listing(self, have_older: bool) -> tuple[str, Mapping[str, _RemoteFile]]:
        hub = _hub()
        try:
            info = hub.HfApi(self._endpoint, token=self._token or False).model_info(
                self._name.repo, revision=self._name.revision, timeout=20.0, files_metadata=True
            )
            described = getattr(info, "gguf", None)
            architecture = described.get("architecture") if isinstance(described, dict) else None
            if self._name.quant and architecture not in (None, *ARCHITECTURES):
                raise UserError(
                    f"{self._name}: the architecture is {quote(architecture)}; supported are {', '.join(ARCHITECTURES)}"
                )
            return _listing(self._name.repo, info.sha, info.siblings or [])
        except TpiedgeError:
            raise
        except hub.errors.HfHubHTTPError as error:
            raise self._explain(error) from None
        except Exception as error:  # versions of the client let errors of different libraries through
            raise self._unreachable(error, have_older) from None
        finally:
            hub.close_session()

    def _complete(self, file: _RemoteFile, partial: Path) -> None:
        """Fetches the file in several attempts."""
        failed = 0
        while True:
            have = _size(partial)
            try:
                if not have or have < file.size:
                    self._fetch_rest(file, partial, have)
                return
            except _BrokeOff as error:
                failed = 1 if _size(partial) > have else failed + 1
                if failed == _ATTEMPTS:
                    raise HubError(str(error)) from None
            time.sleep(_PAUSE_S * failed)

    def _fetch_rest(self, file: _RemoteFile, partial: Path, have: int) -> None:
        hub = _hub()
        headers = {"Accept-Encoding": "identity"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if have:
            headers["Range"] = f"bytes={have}-"
        url = f"{self._endpoint}/{self._name.repo}/resolve/{self._commit}/{file.name}"
        try:
            # The client waits as long as a busy server says; `_complete` resumes transfers that break off.
            stream = hub.utils.http_stream_backoff(
                "GET",
                url,
                headers=headers,
                timeout=hub.constants.HF_HUB_DOWNLOAD_TIMEOUT,
                retry_on_status_codes=(408, 429),
                retry_on_exceptions=(),
            )
            with open(partial, "ab") as out, stream as response:
                hub.hf_raise_for_status(response)
                if have and response.status_code == 200:  # the server ignored the range
                    out.truncate(0)
                    self._advance(-have)
                    have = 0
                for data in response.iter_bytes(_CHUNK):
                    have += len(data)
                    if have > file.size:
                        raise HubError(
                            f"the server sends more of {file.name} than the {file.size} bytes it has"
                        )
                    self._advance(len(data))
                    out.write(data)
        except hub.errors.HfHubHTTPError as error:
            status = getattr(error.response, "status_code", 0)
            if isinstance(error, hub.errors.GatedRepoError) or status in (401, 403):
                raise self._gated() from None
            if status == 416:  # the server has no bytes from there on
                partial.unlink()
            kind = _BrokeOff if status >= 500 else HubError
            raise kind(
                f"{self._endpoint} did not give {file.name} of {self._name.repo} (HTTP {status}): pull again later"
            ) from None
        except (TpiedgeError, OSError):
            raise
        except Exception as error:  # of the HTTP library that the client uses
            raise _BrokeOff(
                f"{file.name} broke off, and several attempts brought nothing more ({_reason(error)}): type the same "
                "command again to resume with what was kept"
            ) from None
        finally:
            hub.close_session()

    def _explain(self, error: OSError) -> TpiedgeError:
        errors, repo = _hub().errors, self._name.repo
        status = getattr(getattr(error, "response", None), "status_code", 0)
        if isinstance(error, errors.GatedRepoError) or status == 403:
            return self._gated()
        if isinstance(error, errors.RevisionNotFoundError):
            return UserError(
                f"{repo} has no revision {quote(self._name.revision)}: see {self._endpoint}/{repo}"
            )
        if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 404):
            return UserError(
                f"{self._endpoint} has no model {repo}, or your HF_TOKEN may not see it: check the name and the token"
            )
        return HubError(f"{self._endpoint} answered with HTTP {status} for {repo}: pull again later")

    def _gated(self) -> UserError:
        repo, account = self._name.repo, "the account of your HF_TOKEN has no access yet"
        return UserError(
            f"{repo} is gated, and {account if self._token else 'you have set no HF_TOKEN'}: accept the licence at "
            f"{self._endpoint}/{repo} and set HF_TOKEN to a token of that account"
        )

    def _unreachable(self, error: Exception, have_older: bool) -> HubError:
        older = "; the copy that was pulled before stays usable without it" if have_older else ""
        offline = isinstance(error, _hub().errors.OfflineModeIsEnabled)
        reason = "HF_HUB_OFFLINE is set" if offline else _reason(error)
        return HubError(
            f"cannot reach the model hub at {self._endpoint} ({reason}): check the network or HF_ENDPOINT{older}"
        )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _digest(path: Path, file: _RemoteFile) -> str:
    begun = hashlib.sha256()
    if len(file.digest) == 40:
        begun = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    with open(path, "rb") as stream:
        os.fsync(stream.fileno())  # from now on its name vouches for its bytes, also after a power cut
        return hashlib.file_digest(stream, lambda: begun).hexdigest()


def _reason(error: Exception) -> str:
    return sanitised_line(error, 120) or type(error).__name__


def _listing(
    repo: str, commit: str | None, siblings: Iterable[object]
) -> tuple[str, Mapping[str, _RemoteFile]]:
    """Reads the hub's list of files. Returns (commit, files by name)."""
    described = {str(getattr(item, "rfilename", "")): item for item in siblings}
    if len(described) > _MAX_FILES:
        raise UserError(
            f"{repo} lists {len(described)} files, more than {_MAX_FILES}: no model needs as many"
        )
    for name in described:
        parts = PurePosixPath(name).parts
        if not name.isprintable() or "\\" in name or name.startswith("/") or ".." in parts or not parts:
            raise UserError(
                f"{repo} lists the file {quote(name)}, which lies outside of it: nothing was fetched; "
                "get the model from a source you trust"
            )
    if commit is None or not _COMMIT.fullmatch(commit):
        raise UserError(f"{repo}: the hub does not say which commit this is: try another HF_ENDPOINT")
    files: dict[str, _RemoteFile] = {}
    for name, item in described.items():
        if name != _POOLING and not any(one.fullmatch(name) for one in (_PLAIN, _TEMPLATE, _GGUF)):
            continue
        size: Any = getattr(item, "size", None)
        digest = getattr(getattr(item, "lfs", None), "sha256", None) or getattr(item, "blob_id", None)
        has_size = isinstance(size, int) and 0 <= size <= 1 << 40
        if not has_size or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            what = "hash" if has_size else "size"
            raise UserError(
                f"{repo}: the hub gives no usable {what} for {quote(name)}: try another HF_ENDPOINT"
            )
        files[name] = _RemoteFile(name, size, digest)
    return commit, files


def _hub() -> ModuleType:
    # Before the client reads its settings.
    os.environ.update({"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_VERBOSITY": "error"})
    import huggingface_hub
    import huggingface_hub.constants
    import huggingface_hub.errors

    huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY = True  # if it was imported before
    return huggingface_hub
