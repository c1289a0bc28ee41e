"""Pulling a model from the hub. The only importer of its client, and only once a pull begins.

The client tells what a repository holds (`HF_ENDPOINT`, `HF_TOKEN` and its other settings are honoured); the files
are fetched here: 2.4.0 deletes what a failed call fetched, and checks no hash. Plain HTTP; it reports to no server.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import httpx

from tpiedge import __version__
from tpiedge.errors import HubError, TpiedgeError, UserError
from tpiedge.model.config import ModelConfig
from tpiedge.model.folder import read_json
from tpiedge.model.hub.cache import HubCache, HubName
from tpiedge.model.hub.listing import (
    INDEX,
    Listing,
    all_weights,
    refuse_paths,
    remote_file,
    texts,
    weights_of,
)
from tpiedge.model.hub.transfer import RemoteFile, Transfer, TransferRefused, partial_of
from tpiedge.pack.writing.target import check_free_space, explain_write_errors, lock_target
from tpiedge.progress import ProgressCallback
from tpiedge.sanitise import quote, sanitised_line

_ENDPOINT = "https://huggingface.co"
_LIST_TIMEOUT_S = 20.0
_TIMEOUT = httpx.Timeout(30.0, connect=10.0)
_LOCK_S = 5.0
_MAX_JSON_BYTES = 10_000_000


@dataclass(frozen=True)
class PullReport:
    """`fetched` bytes came over the network this time; `folder` holds the model at `commit`."""

    folder: Path
    commit: str
    fetched: int


def pull(
    name: HubName, cache: HubCache, progress: ProgressCallback, pause: Callable[[float], object] = time.sleep
) -> PullReport:
    """Fetch what is missing of `name`; `progress` gets (bytes fetched, bytes to fetch).

    Raises UserError (no such model, gated, unsupported, no safetensors), DiskFull, HubError (offline, broken off).
    """
    found = cache.snapshot(name)
    if found is not None and found.name == name.revision:  # a commit never changes
        return PullReport(found, name.revision, 0)
    site = _Site(name)
    listing = site.listing(found is not None)
    entry = cache.entry(name.repo)
    with explain_write_errors(entry, sum(file.size for file in all_weights(listing))):
        (entry / "blobs").mkdir(parents=True, exist_ok=True)
        with lock_target(entry, _LOCK_S), site.client() as client:
            return _Pull(site, listing, entry, Transfer(client, pause), progress).run()


class _Site:
    """The hub as this user sees it."""

    def __init__(self, name: HubName) -> None:
        self.name = name
        self.endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or _ENDPOINT
        if not self.endpoint.startswith(("https://", "http://")):
            raise UserError(f"HF_ENDPOINT is {quote(self.endpoint)}: write it like {_ENDPOINT}")
        self._token = _hub().get_token()

    def client(self) -> httpx.Client:
        """Sends the token to the hub itself only: a redirect to another host loses it."""
        headers = {"User-Agent": f"tpiedge/{__version__}", "Accept-Encoding": "identity"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        return httpx.Client(headers=headers, timeout=_TIMEOUT, follow_redirects=True, max_redirects=5)

    def url(self, commit: str, file: RemoteFile) -> str:
        return f"{self.endpoint}/{self.name.repo}/resolve/{commit}/{file.name}"

    def listing(self, have_older: bool) -> Listing:
        """Ask what the repository holds at the revision."""
        hub = _hub()
        try:
            info = hub.HfApi(self.endpoint, token=self._token or False).model_info(
                self.name.repo, revision=self.name.revision, timeout=_LIST_TIMEOUT_S, files_metadata=True
            )
            return _listing(self.name.repo, info.sha, info.siblings or [])
        except TpiedgeError:
            raise
        except hub.errors.HfHubHTTPError as error:
            raise self._explain(error) from None
        except Exception as error:  # the client's versions differ in which library's errors they let through
            raise self._unreachable(error, have_older) from None
        finally:
            hub.close_session()

    def refused(self, refused: TransferRefused, file: RemoteFile) -> TpiedgeError:
        """Why the hub does not give a file that it has listed."""
        if refused.code == "GatedRepo" or refused.status in (401, 403):
            return self._gated()
        return HubError(
            f"{self.endpoint} did not give {file.name} of {self.name.repo} ({refused}): pull again later"
        )

    def _explain(self, error: OSError) -> TpiedgeError:
        errors, repo = _hub().errors, self.name.repo
        status = getattr(getattr(error, "response", None), "status_code", 0)
        if isinstance(error, errors.GatedRepoError) or status == 403:
            return self._gated()
        if isinstance(error, errors.RevisionNotFoundError):
            return UserError(
                f"{repo} has no revision {quote(self.name.revision)}: see {self.endpoint}/{repo}/tree/main for its "
                "branches and tags"
            )
        if isinstance(error, errors.RepositoryNotFoundError) or status == 404:
            hint = "" if self._token else "; if it is private, set HF_TOKEN"
            return UserError(f"{self.endpoint} has no model {repo}: check the spelling{hint}")
        if status == 401:
            return UserError(f"{self.endpoint} does not accept your HF_TOKEN: make a new one, or unset it")
        return HubError(f"{self.endpoint} answered with HTTP {status} for {repo}: pull again later")

    def _gated(self) -> UserError:
        page = f"{self.endpoint}/{self.name.repo}"
        if self._token:
            return UserError(
                f"{self.name.repo} is gated, and the account of your HF_TOKEN has no access yet: accept the licence "
                f"at {page} with that account"
            )
        return UserError(
            f"{self.name.repo} is gated: accept the licence at {page} and set HF_TOKEN to a token of your account"
        )

    def _unreachable(self, error: Exception, have_older: bool) -> HubError:
        older = "; the copy that was pulled before stays usable without it" if have_older else ""
        reason = sanitised_line(error, 120) or type(error).__name__
        if isinstance(error, _hub().errors.OfflineModeIsEnabled):
            reason = "HF_HUB_OFFLINE is set"
        return HubError(
            f"cannot reach the model hub at {self.endpoint} ({reason}): check the network or HF_ENDPOINT{older}"
        )


class _Pull:
    """One pull, with the right to write `entry`."""

    def __init__(
        self, site: _Site, listing: Listing, entry: Path, transfer: Transfer, progress: ProgressCallback
    ) -> None:
        self._site = site
        self._listing = listing
        self._entry = entry
        self._transfer = transfer
        self._progress = progress
        self._done = self._total = 0

    def run(self) -> PullReport:
        commit = self._listing.commit
        folder = self._entry / "snapshots" / commit
        if not folder.is_dir():
            small = texts(self._listing)
            self._expect([*small, *all_weights(self._listing)])
            staging = _empty(folder.with_name(f"{commit}.partial"))
            self._fetch(small, staging)
            weights = self._weights(staging)
            self._expect(weights)
            check_free_space(self._entry, (self._total - self._done) * 105 // 100)
            self._fetch(weights, staging)
            staging.rename(folder)
        _write_ref(self._entry / "refs", self._site.name.revision, commit)
        return PullReport(folder, commit, self._done)

    def _expect(self, files: Iterable[RemoteFile]) -> None:
        self._total = self._done + sum(self._missing(file) for file in files)

    def _missing(self, file: RemoteFile) -> int:
        blob = self._blob(file)
        if blob.exists():
            return 0
        partial = partial_of(blob)
        return max(0, file.size - (partial.stat().st_size if partial.exists() else 0))

    def _blob(self, file: RemoteFile) -> Path:
        return self._entry / "blobs" / file.digest

    def _weights(self, staging: Path) -> list[RemoteFile]:
        """The files of weights, once the config is known to be one that can run: before the long part."""
        repo = self._listing.repo
        ModelConfig.from_huggingface(
            read_json(staging, "config.json", _MAX_JSON_BYTES), f"config.json of {repo}"
        )
        index = read_json(staging, INDEX, _MAX_JSON_BYTES) if INDEX in self._listing.files else None
        return weights_of(self._listing, index)

    def _fetch(self, files: list[RemoteFile], staging: Path) -> None:
        for file in files:
            blob = self._blob(file)
            if not blob.exists():
                url = self._site.url(self._listing.commit, file)
                try:
                    self._transfer.fetch(file, url, blob, self._advance)
                except TransferRefused as refused:
                    raise self._site.refused(refused, file) from None
            link = staging / file.name
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(os.path.relpath(blob, link.parent))

    def _advance(self, nbytes: int) -> None:
        self._done = max(0, self._done + nbytes)
        self._progress(self._done, self._total)


def _listing(repo: str, commit: str | None, siblings: Iterable[object]) -> Listing:
    files = [(str(getattr(item, "rfilename", "")), item) for item in siblings]
    refuse_paths(repo, [name for name, _ in files])
    if commit is None or len(commit) != 40 or not set(commit) <= set("0123456789abcdef"):
        raise UserError(f"{repo}: the hub does not say which commit this is: try another HF_ENDPOINT")
    found = [
        remote_file(
            repo,
            name,
            getattr(item, "size", None),
            getattr(getattr(item, "lfs", None), "sha256", None) or getattr(item, "blob_id", None),
        )
        for name, item in files
    ]
    return Listing(repo, commit, {file.name: file for file in found if file is not None})


def _hub() -> ModuleType:
    """The hub's client: imported late because it is large, told to keep quiet before it reads its settings."""
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    import huggingface_hub
    import huggingface_hub.constants
    import huggingface_hub.errors

    huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY = True  # where it was imported before
    return huggingface_hub


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _write_ref(refs: Path, revision: str, commit: str) -> None:
    if revision == commit:
        return
    path = refs / revision
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(commit, encoding="ascii")
    partial.replace(path)
