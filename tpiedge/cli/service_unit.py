"""The text of a systemd unit that runs a master or a worker."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_UNIT: Final = """\
[Unit]
Description=tpiedge {verb}
StartLimitIntervalSec=0
{network}
[Service]
Type=notify
ExecStart={command}
{account}Restart=on-failure
RestartSec=5
# Bad input: another start would not help.
RestartPreventExitStatus=2
SuccessExitStatus=130
# A master may first convert its model.
TimeoutStartSec=infinity
TimeoutStopSec={stop_s:.0f}
# Its nodes finish running requests, so SIGTERM is for the main process alone.
KillMode=mixed
WatchdogSec=60
# tpiedge goes on when a node runs out of memory.
OOMPolicy=continue
UMask=0077
NoNewPrivileges=yes
{files}RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
{system}
[Install]
WantedBy={target}
"""
_NETWORK: Final = "Wants=network-online.target\nAfter=network-online.target\n"
#: In some containers, and for some users, systemd can do none of this, and the unit would not start.
FILES: Final = ("ProtectSystem=strict", "PrivateTmp=yes")
#: A user's manager may drop no capabilities: units with these lines would not start there.
_SYSTEM: Final = """\
CapabilityBoundingSet=CAP_DAC_READ_SEARCH CAP_NET_BIND_SERVICE
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
"""


@dataclass(frozen=True)
class ServiceUnit:
    """A systemd service. `account`: the user id under which a system service runs; "": the service is the user's."""

    verb: str
    command: tuple[str, ...]
    writable: tuple[Path, ...]
    account: str = ""
    drain_s: float = 0.0
    confined: bool = True  # writes only to `writable`

    def text(self) -> str:
        # What the service uses in a temporary folder would not be in a private one.
        words = (*self.command, *map(str, self.writable))
        shared = [one for one in ("/tmp", "/var/tmp") if any(word.startswith(f"{one}/") for word in words)]
        writable = _quoted([*map(str, self.writable), *shared])
        files = FILES[: 1 if shared else 2]
        return _UNIT.format(
            verb=self.verb,
            network=_NETWORK if self.account else "",
            # systemd replaces $NAME in command lines only.
            command=_quoted(word.replace("$", "$$") for word in self.command),
            account=f"User={self.account}\n" if self.account else "",
            stop_s=self.drain_s + 30,
            files="".join(f"{line}\n" for line in (*files, f"ReadWritePaths={writable}") if self.confined),
            system=_SYSTEM if self.account else "",
            target="multi-user.target" if self.account else "default.target",
        )


def _quoted(words: Iterable[str]) -> str:
    """Joins `words`, quoted as JSON where needed. systemd knows JSON's escapes."""
    plain = re.compile(r"[\w@/:.,+=-]+")
    quoted = (word if plain.fullmatch(word) else json.dumps(word, ensure_ascii=False) for word in words)
    return " ".join(quoted).replace("%", "%%")
