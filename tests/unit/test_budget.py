"""The budget bounds how much there is of what makes a program hard to know. Its rows go down: who makes something
smaller lowers its row, and who must raise one says here what for."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Final

import grimp
import pytest

import tpiedge
from tools import check_words

PACKAGE: Final = Path(tpiedge.__file__).parent
ROOT: Final = PACKAGE.parent
#: The modules that processes of `tpiedge master` and `tpiedge worker` begin with.
ENTRIES: Final = (
    "tpiedge.cli.entry",
    "tpiedge.cli.master",
    "tpiedge.cli.worker",
    "tpiedge.engine.grammar_child",
    "tpiedge.model.text_child",
    "tpiedge.node.fork_server",
    "tpiedge.node.process",
    "tpiedge.pack.process",
)
PARAMETERS, ATTRIBUTES = 5, 8
"""More of a function, and of a class, count."""
#: Documented, in spite of their first letter.
PUBLIC: Final = frozenset({"_asdict", "_exit", "_fields", "_make", "_replace"})
#: A row that is higher than what there is by more than this part of it, and this many beside, is to be lowered.
SLACK_PART, SLACK = 0.02, 10

#: Lines, rounded up to tens, and files of Python.
SIZES: Final[Mapping[str, tuple[int, int]]] = {
    # Raised for what a master offers in the first day: pulls, keys, links, /docs, its own installation, services.
    # And for several models behind one master, which are served in turns.
    # And for the formats of GGUF's types, which packs keep, and f32 arithmetic on them.
    # And for families of models, one file each, with layers unlike Llama's.
    # And for Gemma 4, whose layers have inputs of their own, and LongRoPE beyond its context.
    # And for one queue of a node's disk, and counters of KV pages.
    # And for kept context: consent, keys, and the verbs that list and clear page files.
    # And for pages on disk.
    # And for experts: their storage, memory, plans, families and kernels.
    # And for pages on disk, and for disks that hang.
    # And for answers in Harmony's format.
    # And for preambles, the order of use, parked pages of other masters, and how answers were resumed.
    # And for gpt-oss and Gemma 4 with experts, and the digest of chosen experts.
    "loaded by master, worker and node": (46930, 274),
    # 850 lines are the fakes that were a package of tpiedge.
    # And tests of the first day: installing, services, names of models, keys, links, formulas, saved conversations.
    # And of turns of models: stories, a simulation with several models, and real processes.
    # And of every kept format: its bytes, products, logits and files.
    # And for these families: tiny models with ablations, GGUF files, unlike layers in cache and planner.
    # And for Gemma 2 and 4, a made-up model in processes, and GGUF files of OLMo and Phi-3.
    # And for the page store: a state machine against its folder, faults at each file operation, what is refused.
    # And for the order of a disk's jobs.
    # And for the keys, scopes and files of kept context.
    # And for pages on disk: schedules of the pure machine, of clusters that change and lose nodes, and of consent.
    # And for experts: tiny mixtures beside transformers, packs, memory, plans and GGUF files of them.
    # And for answers in Harmony's format, in tokens, templates, grammars and every API.
    # And for preambles, the order of use and the space of pages on disk.
    # And for gpt-oss and Gemma 4 with experts, and nodes that choose other experts. And for how tools are run.
    "tests": (74520, 566),
    # Raised for the check of words in docstrings and comments, and for diagrams that are made from the code.
    # And for `make setup` and `make uninstall`, which run on the bare interpreter.
    # And for docs/files.md, a Q4_K_M file for llama.cpp and tpiedge, and agreement with its logits.
    # And for fetching Gemma 3 270M.
    # And for a chat over several nodes beside transformers, and random files of Gemma 3 and Phi-4-mini.
    # And for an abusing worker that answers about page files unasked.
    # And for faults of page files and their disks.
    # And for shapes with experts beside llama.cpp, predictions of speed, and a mixture in the nemesis.
    "tools": (15400, 146),
    # Raised for the first day, in api, cli, host, local and model.
    # And for turns of models, in api, cli, local and master; and words that docstrings lacked.
    # And for kept formats, in kernels, pack, model, planner and cli.
    # And for families of models whose layers are unlike Llama's, in model, kernels and engine.
    # And for Gemma 2 and 4, inputs per layer, LongRoPE beyond its context, and a chat template of the user's own.
    # And for pages on disk, in kv.
    # And for one queue of a node's disk, in memory.
    # And for kept context, in api, cli, host, kv, local, master, wire and worker.
    # And for pages that go to disk and come back: what decides it, and what moves them.
    # And for experts, in pack, model, planner, memory, engine and kernels.
    # And for answers in Harmony's format.
    # And for preambles, the order of use and the space of pages on disk, and how answers were resumed.
    # And for gpt-oss and Gemma 4 with experts, and the digest of chosen experts. And for a head in one product.
    "tpiedge": (61820, 366),
    "tpiedge, modules of its own": (630, 10),
    "tpiedge.answers": (720, 4),
    # Raised for the deadline of TLS handshakes.
    # Also for /docs, links with the admin key, files for other machines, and refusals in words. And for keep_alive,
    # lists of several models, and the choice among them.
    # And for `reasoning_effort`, and grammars with headers of Harmony's messages.
    # And for the length of what chats with the same system prompt share.
    # And for the length of what chats with the same system prompt share.
    "tpiedge.api": (7040, 36),
    # Raised for services, pulls, keys, the chat's history, and tables that fit a terminal. And for `tpiedge use`,
    # and a prompt as an argument.
    # And for what imports keep and round.
    # And for --chat-template.
    # And for `tpiedge cache` and its flags.
    # And for reasoning in messages, which `tpiedge run` shows.
    # And for what a model needs, in `tpiedge ls --all`.
    "tpiedge.cli": (6080, 34),
    # Raised for the digest of chosen experts.
    "tpiedge.collectives": (1040, 8),
    "tpiedge.doctor": (420, 3),
    # Raised for rotations, norms, factors and KV heads that differ from layer to layer.
    # And for inputs per layer, and sequences that outgrow the context of their rotation.
    # And for pages that go to disk and come back, in place of snapshots.
    # And for blocks of experts.
    # And for pages that go to disk and come back, in place of snapshots. And for disks that hang.
    # And for ends of preambles, and the order in which pages on disk are used.
    # And for layers with an FFN and experts, biases, sinks, and costs of experts.
    # And for an LM head that is one product, whose logits are scaled row by row.
    "tpiedge.engine": (4430, 18),
    # Raised for messages to systemd.
    # And for the secret of kept context.
    "tpiedge.host": (960, 8),
    "tpiedge.joining": (1390, 10),
    # Raised for nine formats of panels, each bit by bit in numpy, and for f32 products of them.
    # Raised for GELU, soft caps, ends of blocks, values that are keys, and norms over all heads.
    # Raised for FFNs that take inputs in place of up.
    # Raised for routers and experts.
    # And for biases and norms of routers, two sums of a block, and sinks.
    "tpiedge.kernels": (2760, 17),
    # Raised for caches of unlike layers.
    # And for sealed pages on disk.
    # And for counting and deleting page files.
    # And for keys of names, and names of pages that are not full.
    # And for parked pages of other masters, and reads that fail for a moment.
    "tpiedge.kv": (760, 6),
    # Raised for `bench kernels` of mixtures.
    "tpiedge.lab": (8850, 47),
    # Raised, as is the row of node, for the fork server: a new epoch imports nothing, and a machine has what was
    # imported in memory once.
    "tpiedge.launch": (660, 5),
    # Raised for the wheel and the sources that a master hands out. And for the models that requests may name.
    # And for what a pack's source lost.
    # And for the page files of all machines.
    # And for answers in messages, which a local cluster reads.
    "tpiedge.local": (1780, 9),
    # Raised for turns of models, and weights that leave memory.
    # And for the keys of pages, and which machines keep them.
    # And for how resumed answers got their KV cache.
    "tpiedge.master": (4310, 23),
    # Raised for matrices that every node has whole.
    # And for the queue of weights and KV pages, whose order is a pure file of its own.
    # And for experts, which are always pinned. And for an LM head that is one matrix.
    "tpiedge.memory": (1470, 10),
    # Raised for GGUF files of the hub, split ones too, and the names that people know.
    # And for what of a checkpoint can be kept as it is.
    # Raised for a file of each family, with its shapes and its names in GGUF files.
    # And for Gemma 2 and 4, and GGUF files of Gemma 4 and OLMo.
    # And for three families with experts, and their stacked tensors in checkpoints and GGUF files.
    # And for Harmony's messages, and templates that show one call of a message.
    # And for gpt-oss, Gemma 4 with experts, and checkpoints with experts in one tensor.
    "tpiedge.model": (7420, 49),
    # Raised for counters of KV pages, as is the row of wire.
    # And for a node's stores of pages.
    "tpiedge.node": (1210, 8),
    # Raised for matrices of several formats in one layer, and blocks of GGUF and zero points read exactly.
    # And for matrices that are some rows of a tensor, and norms to which files have added 1.
    # And for grids of every row-parallel matrix, and tables of inputs per layer.
    # And for experts, which are stored expert after expert, unit after unit.
    # And for columns of tensors, and MXFP4 in checkpoints.
    "tpiedge.pack": (3810, 18),
    # Raised for what makes plans quick enough to need no thread of their own: the times of fractions are computed.
    # And for sizes of layers that differ.
    # Raised for layers of unlike shapes.
    # And for machines that give disk space to KV pages.
    # And for a third axis, and bytes that a token needs of those that memory holds.
    "tpiedge.planner": (1490, 9),
    "tpiedge.shipping": (550, 4),
    "tpiedge.tracing": (300, 3),
    "tpiedge.transport": (2030, 13),
    # Raised for shares as intervals of layers and axes.
    # And for consent, keys of pages, and orders about page files.
    # And for orders to move pages.
    "tpiedge.wire": (1200, 9),
    # Raised for what a spare waits for and what to type.
    # And for answers about page files.
    "tpiedge.worker": (610, 5),
}

#: Anything else.
COUNTS: Final[Mapping[str, int]] = {
    # Raised for turns of models, and for the order of a disk's jobs.
    # And for pages on disk: who decides, who moves them, and whose they are.
    # Raised for turns of models.
    # And for how packs store experts.
    # And for the order in which pages on disk are used.
    # And for costs of experts.
    "numbered laws": 94,
    # Raised for the life of a link, lengths of `bench speed`, limits of split files, and the length of a turn.
    # And for limits of inputs per layer, and lengths of a seal.
    # And for limits of inputs per layer, and the deadline of waits for a disk's jobs.
    # And for limits of inputs per layer.
    # And for the version of pages, and the wait for page files.
    # And for limits and times of moves of pages.
    # And for limits, tiles and samples of experts.
    # And for limits and times of moves of pages, of late ones too.
    # And for costs and memory of experts.
    "numbers that modules name": 564,
    # Raised for what a model of a running master needs.
    # And for the disk of the batcher.
    # And for a block of experts, by products and as one call.
    # And for the pages that an order depends on.
    # And for blocks with an FFN and experts.
    "functions with more than 5 parameters": 48,
    # Raised by what a layer's attention and a family have.
    # And for orders of pages.
    # And by one native call for experts.
    # And for blocks with experts.
    "classes with more than 8 attributes": 97,
    "private names of libraries": 0,
    # Raised for turns of models, and for verbs, units and results that readers missed.
    # Raised for families, layers that differ, and what kernels may leave out.
    # And for inputs per layer, and what Gemma 4 has beside Llama.
    # And for the files of pages on disk.
    # And for a disk's queue: its laws, and who closes it.
    # And for kept context.
    # And for pages on disk.
    # And for experts.
    # And for pages on disk, and for disks that hang.
    # And for answers in Harmony's format.
    # And for the order and space of pages on disk.
    # And for gpt-oss and Gemma 4 with experts, and heads that are one product.
    "words of docstrings": 47740,
}


@dataclass(frozen=True)
class Source:
    module: str
    lines: int
    tree: ast.Module


@cache
def sources() -> tuple[Source, ...]:
    return tuple(_source(path) for path in sorted(PACKAGE.rglob("*.py")))


def _source(path: Path) -> Source:
    text = path.read_text(encoding="utf-8")
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return Source(module, text.count("\n"), ast.parse(text))


def sizes() -> dict[str, tuple[int, int]]:
    """Returns lines and files by package of tpiedge, and by folder beside it."""
    found: dict[str, list[int]] = {}
    for source in sources():
        package = ".".join(source.module.split(".")[:2])
        held = (PACKAGE / package.partition(".")[2]).is_dir()
        for row in ("tpiedge", package if held and package != "tpiedge" else "tpiedge, modules of its own"):
            found.setdefault(row, []).append(source.lines)
    for folder in ("tests", "tools"):
        found[folder] = [
            path.read_text(encoding="utf-8").count("\n") for path in (ROOT / folder).rglob("*.py")
        ]
    loaded = loaded_modules()
    found["loaded by master, worker and node"] = [one.lines for one in sources() if one.module in loaded]
    return {row: (sum(lines), len(lines)) for row, lines in found.items()}


def loaded_modules() -> set[str]:
    """Returns what the entries import, inside functions too, for sooner or later that is loaded."""
    graph = grimp.build_graph("tpiedge", exclude_type_checking_imports=True)
    found = set(chain(ENTRIES, *(graph.find_upstream_modules(entry) for entry in ENTRIES)))
    for module in tuple(found):
        parts = module.split(".")
        found.update(".".join(parts[:count]) for count in range(1, len(parts)))
    return found


def counts() -> dict[str, int]:
    nodes = [node for source in sources() for node in ast.walk(source.tree)]
    return {
        "numbered laws": sum(len(_laws(source.tree)) for source in sources()),
        "numbers that modules name": sum(len(_constants(source.tree)) for source in sources()),
        f"functions with more than {PARAMETERS} parameters": sum(
            _parameters(node) > PARAMETERS
            for node in nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ),
        f"classes with more than {ATTRIBUTES} attributes": sum(
            len(set(_attributes(node))) > ATTRIBUTES for node in nodes if isinstance(node, ast.ClassDef)
        ),
        "private names of libraries": len(private_names(nodes)),
        "words of docstrings": check_words.words(),
    }


def private_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Returns the names that are read of something and that nothing of tpiedge has, and those of imported modules."""
    own = set[str]()
    read = set[str]()
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                own.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                own.add(name)
            case ast.Attribute(attr=name):
                read.add(name)
            case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), *_]):
                read.add(name)
            case ast.ImportFrom(module=str(module), level=0) if not module.startswith("tpiedge."):
                read.update(module.split("."), (one.name for one in node.names))
            case ast.Import():
                read.update(chain.from_iterable(one.name.split(".") for one in node.names))
    return {name for name in read - own - PUBLIC if re.match("_[a-z]", name)}


def _laws(tree: ast.Module) -> list[str]:
    """Numbered lines of a docstring, whether a module's, a class's or a function's."""
    held = (node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef))
    texts = [ast.get_docstring(node) or "" for node in held]
    return re.findall(r"^\d+\. ", "\n".join(texts), re.MULTILINE)


def _constants(tree: ast.Module) -> list[str]:
    """The names in capitals that a module gives a number, or what is computed of some."""
    found: list[str] = []
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[target], value=value)
                | ast.AnnAssign(target=target, value=ast.expr() as value)
            ):
                match target, value:
                    case ast.Tuple(elts=names), ast.Tuple(elts=values):
                        pairs = list(zip(names, values, strict=True))
                    case _:
                        pairs = [(target, value)]
                found += [
                    name.id
                    for name, value in pairs
                    if isinstance(name, ast.Name)
                    and re.fullmatch("_?[A-Z][A-Z0-9_]*", name.id)
                    and _is_number(value)
                ]
    return found


def _is_number(value: ast.expr) -> bool:
    match value:
        case ast.Constant(value=int() | float()) | ast.BinOp() | ast.UnaryOp() | ast.Name():
            return True
    return False


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """`self` and `cls` are none, nor is a verb's option: those are a table that click reads."""
    if any("click." in ast.unparse(one) for one in node.decorator_list):
        return 0
    given = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len([name for name in given if name not in ("self", "cls")])


def _attributes(node: ast.ClassDef) -> Iterator[str]:
    """Fields of the class itself, and what its methods set."""
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            yield one.target.id
    for inner in ast.walk(node):
        match inner:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


def told(row: str, had: int, has: int) -> str | None:
    """Returns what is to be done about a row, if anything."""
    if has > had:
        return f"{row}: {has} instead of {had}: make something smaller, or raise the row and say what for"
    if had > has * (1 + SLACK_PART) + SLACK:
        return f"{row}: only {has} instead of {had}: lower the row"
    return None


def test_code_size_stays_within_budget() -> None:
    found = sizes()
    assert found.keys() == SIZES.keys(), "a row for each"
    words = [
        told(f"{what} of {row}", had, has)
        for row, rows in SIZES.items()
        for what, had, has in zip(("lines", "files"), rows, found[row], strict=True)
    ]
    now = counts()
    assert now.keys() == COUNTS.keys()
    words += [told(row, had, now[row]) for row, had in COUNTS.items()]
    assert not list(filter(None, words))


@pytest.mark.parametrize(("had", "has", "begins"), [
    (10, 11, "row: 11 instead of 10"), (10, 10, None), (20, 10, None), (100, 88, "row: only 88 instead of 100"),
])  # fmt: skip
def test_budget_row_too_low_or_too_high_is_reported(had: int, has: int, begins: str | None) -> None:
    words = told("row", had, has)
    assert words is None if begins is None else (words or "").startswith(begins)


WRITTEN = '''"""What it does.

1. A law.
2. Another.
"""
from library._inner import Name
from tpiedge._native import sums
A, _B = 1, 2
C: int = 3 * MIB
d = 4
E = "text"

def some(a, b, c, *, d, e, f): ...

class Some:
    """
    1. A law of its own.
    """

    x: int

    def __init__(self):
        self.y = library._own + self._z
        self._z = getattr(self.y, "_old")
'''


def test_budget_counters_count_sample_source() -> None:
    tree = ast.parse(WRITTEN)
    nodes = list(ast.walk(tree))
    assert len(_laws(tree)) == 3
    assert _constants(tree) == ["A", "_B", "C"]
    assert [_parameters(node) for node in nodes if isinstance(node, ast.FunctionDef)] == [6, 0]
    [some] = [node for node in nodes if isinstance(node, ast.ClassDef)]
    assert Counter(_attributes(some)) == {"x": 1, "y": 1, "_z": 1}
    assert private_names(nodes) == {"_inner", "_old", "_own"}
