"""The errors that tpiedge raises on purpose. A message is one line: what happened, where, what to do next.

TpiedgeError
├── UserError          the user's request, flag, file or model                exit 2
├── PeerError          another node or its message                            exit 3
│   ├── PeerLost
│   └── ProtocolError
│       └── Misconduct
├── ResourceError      this computer lacks memory, disk space, a working disk exit 4
│   ├── OutOfMemory
│   ├── DiskFull
│   ├── ReadFault      a read failed
│   ├── ChildLost
│   └── IntegrityError bytes on disk differ from their hash
├── HubError                                                                  exit 1
├── Cancelled          the user or a deadline ended the work                  exit 130
└── InternalError      a defect of our own code                               exit 70
"""

import errno
import os
import re
from pathlib import Path

_PEER_LOST = re.compile(r"node (\d{1,9})(?: \(([^)]*)\))? was lost during ([^:]*): (.*)", re.DOTALL)


class TpiedgeError(Exception):
    """`exit_code` is the exit status of a command that ends with the error."""

    exit_code = 1


class UserError(TpiedgeError):
    exit_code = 2


class GrammarRefused(UserError):
    """A grammar that is wrong, too large, or not supported."""


class ContextFull(UserError):
    """A conversation does not fit into the context."""


class UnknownWorker(UserError):
    """The cluster has no worker of this name."""


class PeerError(TpiedgeError):
    exit_code = 3


class PeerLost(PeerError):
    """A peer died, froze or was cut off. `waited_for` names the operation that waited, like "allreduce of step 4"."""

    def __init__(self, rank: int, waited_for: str, cause: str, host: str = "") -> None:
        where = f" ({host})" if host else ""
        super().__init__(f"node {rank}{where} was lost during {waited_for}: {cause}")
        self.rank = rank
        self.waited_for = waited_for
        self.cause = cause
        self.host = host

    @staticmethod
    def read(message: str) -> "PeerLost | None":
        found = _PEER_LOST.fullmatch(message)
        return PeerLost(int(found[1]), found[3], found[4], found[2] or "") if found else None


class ProtocolError(PeerError):
    """A message breaks the protocol."""


class Misconduct(ProtocolError):
    """The node `rank` broke the protocol, or sent impossible numbers."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


class ResourceError(TpiedgeError):
    exit_code = 4


class OutOfMemory(ResourceError):
    """The planner or the operating system finds too little memory."""


class DiskFull(ResourceError):
    """The disk lacks space."""

    @classmethod
    def at(cls, path: Path) -> "DiskFull":
        """Returns the error for `path`, whose file system lacks bytes or inodes."""
        return cls.of_inodes(path) or cls(f"no space left for {path}: free some")

    @classmethod
    def of_inodes(cls, path: Path) -> "DiskFull | None":
        """Returns the error if the file system of `path` has no inodes, else None."""
        folder = next((one for one in (path, *path.absolute().parents) if one.exists()), Path("/"))
        found = os.statvfs(folder)
        if not found.f_files or found.f_favail or not found.f_bavail:
            return None
        return cls(
            f"no inodes left for {path}: its file system has space, but can hold no more files (df -i {folder}); "
            "free some by deleting files that nobody needs, or choose a folder on another disk"
        )


def cannot_write(path: Path, error: OSError, words: str = "") -> TpiedgeError:
    """Returns DiskFull if space is lacking, else a UserError. `words` replaces the default text of the UserError."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull.at(path)
    return UserError(words or f"cannot write {path}: {error.strerror}")


class ReadFault(ResourceError):
    def __init__(self, path: Path, offset: int, length: int, cause: str) -> None:
        super().__init__(f"cannot read {length} bytes at offset {offset} of {path}: {cause}")


class ChildLost(ResourceError):
    """A request's child process died repeatedly or did not start. The client may repeat the request."""


class IntegrityError(ResourceError):
    """`what` names the damaged range of the file `path`."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(
            f"{what} of {path} is damaged (its checksum differs): delete the pack and pack again"
        )


class HubError(TpiedgeError):
    """The model hub cannot be reached or fails. Trying again may help."""


class Cancelled(TpiedgeError):
    exit_code = 130


class InternalError(TpiedgeError):
    exit_code = 70


class MasterFailed(InternalError):
    """The master ends because of its own defect."""
