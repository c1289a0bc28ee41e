"""The command line of a service. The verb has checked its flags, its paths are absolute, and secrets are in a file."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource
from platformdirs import user_cache_path, user_config_path, user_state_path

from tpiedge.cli.options import Location
from tpiedge.cli.settings import COMMON, named_settings, options_of, variables_of, verbs_of
from tpiedge.errors import UserError
from tpiedge.local.catalogue import find_model
from tpiedge.pack.manifest import MANIFEST_NAME

VERBS: Final = ("master", "worker")
_OTHERWISE: Final = ("state", "cache", "config", "token", "api_keys")  # given in another way


def secret_file(verb: str) -> Path:
    """Returns the path of a file that keeps the token or the API keys given to a service as flags."""
    return user_config_path("tpiedge") / f"service-{verb}.secret"


class CommandLine:
    """The checked command line of a verb. Raises UserError and click's errors, as the verb would."""

    def __init__(self, ctx: click.Context, verb: str, flags: Sequence[str]) -> None:
        root = ctx.find_root()
        self._verb, self._command = verb, verbs_of(root.command, [verb])[verb]
        self._checked = self._command.make_context(verb, list(flags), parent=root)
        self.values: Mapping[str, Any] = self._checked.params
        self._typed: Mapping[str, Any] = self._command.make_parser(self._checked).parse_args([*flags])[0]
        self._settings = named_settings(ctx)
        self.folders = (
            (self.values["state"] or user_state_path("tpiedge")).absolute(),
            (self.values["cache"] or user_cache_path("tpiedge")).absolute(),
        )
        self.secrets: dict[Path, str] = {}
        self._refuse_variables()
        if verb == "master":
            model = self.values["model_argument"] or self.values["model_name"]
            if model is None:
                raise UserError("no MODEL is given: tpiedge service install master MODEL")
            find_model(model, self.values["cache"])

    def command(self) -> tuple[str, ...]:
        own = Path(sys.executable).with_name("tpiedge")
        if not own.exists():
            raise UserError(f"there is no {own}: install tpiedge there with pip")
        return (str(own), self._verb, *self._words())

    def writable(self) -> tuple[Path, ...]:
        token_file = self.values["token_file"] if self._verb == "master" else None
        return (*self.folders, *([] if token_file is None else [token_file.absolute().parent]))

    def _refuse_variables(self) -> None:
        """Raises UserError if a variable of this shell, which the service would lack, sets a flag."""
        options = options_of(self._command)
        names = {name for key in options if key not in COMMON for name in variables_of(self._verb, key)}
        if found := sorted({"TPIEDGE_CONFIG", *names} & {name for name in os.environ if os.environ[name]}):
            raise UserError(
                f"the service would not have {found[0]} of this shell: unset it, and give a flag instead"
            )

    def _words(self) -> Iterator[str]:
        state, cache = self.folders
        yield from ("--state", str(state), "--cache", str(cache))
        if self._settings is not None:
            yield from ("--config", str(self._settings.absolute()))
        yield from self._replaced()
        arguments = []
        for param in self._command.params:
            name = param.name or ""
            if self._checked.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
                continue
            raw = self._typed[name]
            if isinstance(param, click.Argument):
                arguments.append(_absolute_model(raw))
            elif isinstance(param, click.Option) and name not in _OTHERWISE:
                for one in raw if param.multiple else [raw]:
                    if isinstance(param.type, Location):
                        one = os.path.abspath(one)
                    elif name == "model_name":
                        one = _absolute_model(one)
                    yield from (param.opts[0],) if param.is_flag else (param.opts[0], one)
        yield from arguments

    def _replaced(self) -> Iterator[str]:
        """Yields flags that keep secrets out of the unit, or make a worker wait for its master."""
        secret = secret_file(self._verb)
        if self._verb == "worker":
            if token := self._given("token"):
                if self._given("token_file"):
                    raise UserError("give --token or --token-file, not both")
                self.secrets[secret] = f"{token}\n"
                yield from ("--token-file", str(secret))
            if not self.values["wait_s"]:
                yield from ("--wait", "86400")
            return
        if keys := self._given("api_keys"):
            if self._given("api_key_file"):
                raise UserError("give --api-key or --api-key-file, not both")
            self.secrets[secret] = "".join(f"{key}\n" for key in keys)
            yield from ("--api-key-file", str(secret))
        if self.values["token_file"] is None:  # else it would say a token
            yield from ("--token-file", str(self.folders[0] / "master" / "service-token"))

    def _given(self, name: str) -> Any:
        typed = self._checked.get_parameter_source(name) is ParameterSource.COMMANDLINE
        return self._typed[name] if typed else None


def _absolute_model(name: str) -> str:
    files = (Path(name), *(Path(name) / inside for inside in ("config.json", MANIFEST_NAME)))
    return os.path.abspath(name) if any(map(os.path.isfile, files)) else name
