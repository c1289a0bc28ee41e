"""Measure the time of a grammar's masks, and check that answers keep to it, without a model.

    python -m tools.bench_grammars MODEL [--schemas 1000] [--seed 1] [--calls]
    python -m tools.bench_grammars MODEL --flood http://127.0.0.1:8080 [--answers 5]

Draws answers for random JSON schemas with the tokenizer of MODEL. Prints times until a schema's first mask and from a
token to the next mask, and the part of ended answers that fit their schemas. --calls takes schemas of tools that a
model calls. --flood measures a server of MODEL: a client alone, beside a flood, and beside a flood of slow grammars
(`grammar_flood.py`).
"""

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path

import jsonschema
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as seeded
from tokenizers import Tokenizer as Backend

from tests.cluster.schemas import schemas
from tests.fakes.service import FakeService
from tools.grammar_flood import measure
from tpiedge.api.call_grammars import begun_call_grammar
from tpiedge.api.tools import ParsedTools
from tpiedge.engine.constraints import TriggeredConstraint, start_constraint
from tpiedge.engine.grammars import Constraint, Grammars, await_any
from tpiedge.errors import UserError
from tpiedge.local.prepare import prepare
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.pack.manifest import TEXT_FOLDER
from tpiedge.wire.requests import GenerationRequest, Grammar

MOST_TOKENS = 400
OPENER = "<tool_call>"
FREE_TOKENS = 100
COMPILED_WITHIN_S = 30.0


class Bench:
    """Measurements in milliseconds."""

    def __init__(self, grammars: Grammars, tokenizer: Tokenizer, rows: int, chance: random.Random) -> None:
        self._grammars = grammars
        self._tokenizer = tokenizer
        self._rows = rows
        self._chance = chance
        self.begin_ms: list[float] = []
        self.token_ms: list[float] = []
        self.free_ms: list[float] = []
        self.answers = self.ended = self.valid = self.forced = 0

    def answer(self, schema: dict[str, object]) -> None:
        """Draws an answer of at most MOST_TOKENS."""
        end = self._tokenizer.eos_id or 0
        grammar = Grammar("json", json.dumps(schema))
        began = time.perf_counter()
        request = GenerationRequest("bench", (1,), MOST_TOKENS, stop_ids=(end,), grammar=grammar)
        self.answers += 1
        ids: list[int] = []
        with closing(self._grammars.start_compile(request, again=False)) as constraint:
            allowed = self._allowed(constraint)
            self.begin_ms.append(1e3 * (time.perf_counter() - began))
            while len(ids) < MOST_TOKENS:
                ids.append(int(self._chance.choice(allowed)))
                if ids[-1] == end:
                    break
                began = time.perf_counter()
                constraint.accept(ids[-1:])
                allowed = self._allowed(constraint)
                self.token_ms.append(1e3 * (time.perf_counter() - began))
                self.forced += len(allowed) == 1
        if ids[-1] == end:
            self.ended += 1
            text = b"".join(self._tokenizer.token_bytes(token) or b"" for token in ids[:-1])
            try:
                jsonschema.validate(json.loads(text), schema)
                self.valid += 1
            except (ValueError, jsonschema.ValidationError) as error:
                print(f"not of its schema: {text!r}: {schema}: {error}", file=sys.stderr)

    def call(self, schema: dict[str, object]) -> None:
        """Draws free text, the opening of a call, and the call, up to its end or MOST_TOKENS."""
        tool = {"type": "function", "function": {"name": "tool", "parameters": schema}}
        end = self._tokenizer.eos_id or 0
        service = FakeService(self._tokenizer, vocab_size=self._rows, eos_ids=(end,))
        grammar = begun_call_grammar(ParsedTools((tool,)), "hermes", "", service.model())
        if grammar is None or grammar.begins is None:
            raise SystemExit("the tokenizer has no token for what opens a call")
        request = GenerationRequest("bench", (1,), MOST_TOKENS, stop_ids=(end,), grammar=grammar)
        began = time.perf_counter()
        constraint = start_constraint(self._grammars, request)
        if not isinstance(constraint, TriggeredConstraint):
            raise SystemExit("the process of a grammar cannot be started")
        with closing(constraint):
            while not constraint.ready():
                await_any([constraint], COMPILED_WITHIN_S)
            self.begin_ms.append(1e3 * (time.perf_counter() - began))
            self.answers += 1
            free = [self._chance.randrange(self._rows - 1) for _ in range(FREE_TOKENS)]
            token = 0
            for token in (*(one for one in free if one != grammar.begins), grammar.begins):
                began = time.perf_counter()
                constraint.guess(())
                next(iter(constraint.masks(shared=False)))
                constraint.accept([token])
                self.free_ms.append(1e3 * (time.perf_counter() - began))
            ids: list[int] = []
            began = time.perf_counter()
            while len(ids) < MOST_TOKENS:
                constraint.guess(())
                mask = next(iter(constraint.masks(shared=False)))
                self.token_ms.append(1e3 * (time.perf_counter() - began))
                if mask is None:
                    break
                allowed = np.flatnonzero(np.unpackbits(mask, count=self._rows, bitorder="little"))
                self.forced += len(allowed) == 1
                ids.append(int(self._chance.choice(allowed)))
                began = time.perf_counter()
                constraint.accept(ids[-1:])
        if mask is None:
            self.ended += 1
            text = b"".join(self._tokenizer.token_bytes(token) or b"" for token in ids)
            try:
                value, _ = json.JSONDecoder().raw_decode(text.decode().lstrip())
                jsonschema.validate(value["arguments"], schema)
                self.valid += value["name"] == "tool"
            except (ValueError, jsonschema.ValidationError) as error:
                print(f"no call: {text!r}: {schema}: {error}", file=sys.stderr)

    def _allowed(self, constraint: Constraint) -> np.ndarray:
        (mask,) = constraint.masks(shared=False)
        return np.flatnonzero(np.unpackbits(mask, count=self._rows, bitorder="little"))


def with_opener(folder: Path, where: Path) -> Path:
    """Returns a copy of a model's texts, whose tokenizer has the token OPENER too."""
    copy = where / "text"
    shutil.copytree(folder, copy)
    backend = Backend.from_file(str(copy / "tokenizer.json"))
    backend.add_tokens([OPENER])
    backend.save(str(copy / "tokenizer.json"))
    return copy


def quantiles(times_ms: list[float]) -> str:
    cuts = statistics.quantiles(times_ms, n=100)
    return f"median {statistics.median(times_ms):.2f} ms, p99 {cuts[98]:.2f} ms, most {max(times_ms):.2f} ms"


def main() -> int:
    """Returns 1 if an answer does not fit its schema, or the model cannot be used."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a file, a folder or a name")
    parser.add_argument("--schemas", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calls", action="store_true", help="of tools, in free text")
    parser.add_argument("--cache", type=Path, help="folder for the pack [default: the user's]")
    parser.add_argument("--flood", metavar="URL", help="of a server on this computer, without keys")
    parser.add_argument("--answers", type=int, default=5, help="of each measurement of --flood")
    arguments = parser.parse_args()
    if arguments.flood:
        measure(arguments.flood, arguments.model, arguments.answers)
        return 0
    try:
        model = prepare(arguments.model, None, None, arguments.cache)
        tokenizer = model.tokenizer
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    rows = model.config.vocab_size
    with ExitStack() as stack:
        folder = model.pack.path / TEXT_FOLDER
        if arguments.calls:
            folder = with_opener(folder, Path(stack.enter_context(tempfile.TemporaryDirectory())))
            tokenizer = Tokenizer.open(folder)
            rows = max(rows, len(tokenizer.vocabulary))
        grammars = stack.enter_context(closing(Grammars(folder, rows)))
        bench = Bench(grammars, tokenizer, rows, random.Random(arguments.seed))
        bench.answer({"type": "null"})  # starts the process
        print(f"{rows} tokens; the first grammar after {bench.begin_ms.pop():.0f} ms")
        bench.answers = bench.ended = bench.valid = bench.forced = 0
        bench.token_ms.clear()

        @seeded(arguments.seed)
        @settings(
            max_examples=arguments.schemas,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(schemas())
        def check(schema: dict[str, object]) -> None:
            if arguments.calls:
                bench.call({"type": "object", "properties": {"value": schema}, "required": ["value"]})
            else:
                bench.answer(schema)

        check()
    print(f"a grammar until its first mask: {quantiles(bench.begin_ms)}")
    print(f"a token until the next mask: {quantiles(bench.token_ms)}, of {len(bench.token_ms)}")
    if bench.free_ms:
        print(
            f"a token of free text: {1e3 * statistics.median(bench.free_ms):.1f} microseconds in the median"
        )
    print(
        f"{bench.answers} schemas: {bench.ended} answers ended by themselves, {bench.valid} of their schemas"
    )
    print(f"{100 * bench.forced / len(bench.token_ms):.0f} % of the tokens were the only ones allowed")
    return int(bench.valid < bench.ended)


if __name__ == "__main__":
    sys.exit(main())
