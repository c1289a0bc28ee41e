"""The keys of KV pages change with the facts that change pages."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import pytest

from tests.unit.master.stories import SERVED, SHAPE, assignments_of
from tpiedge.master import assignments
from tpiedge.master.assignments import Assignment, Assignments, Served, without_disk
from tpiedge.master.page_keys import PageSecrets
from tpiedge.pack.share import Share
from tpiedge.wire.control import PageKeys

KEPT, PARKED = bytes(range(32)), bytes(range(32, 64))
SECRETS = PageSecrets(PARKED, KEPT)
#: Bits differ with the split in the first, and do not in the second.
F32 = replace(SERVED, pages=SECRETS)
INT8 = replace(F32, compute="int8", kv="bf16")
PARTS = tuple(replace(one, keeps=True, parks=True) for one in assignments_of("w-1", "w-2"))


def keys(served: Served = INT8, parts: tuple[Assignment, ...] = PARTS, rank: int = 0) -> PageKeys:
    found = served.assign(3, Assignments(parts), rank, {}, None).pages
    assert found is not None
    return found


def moved(parts: tuple[Assignment, ...]) -> tuple[Assignment, ...]:
    other = SHAPE.share(Share(0, 2), Share(0, 1))
    return replace(parts[0], share=other), *parts[1:]


@pytest.mark.parametrize(
    ("change", "names", "split"),
    [
        (lambda one: replace(one, pack_id="pack-2"), True, True),
        (lambda one: replace(one, kv="q8"), True, True),
        (lambda one: replace(one, grids=((1, 2),)), True, True),
        (lambda one: replace(one, pages=PageSecrets(PARKED, PARKED)), True, True),
        (lambda one: replace(one, wire="bf16"), False, True),
        (lambda one: replace(one, context_tokens=32, sequences=3, speculate=4, name="x"), False, False),
        (lambda one: replace(one, pages=PageSecrets(KEPT, KEPT)), False, False),
    ],
    ids=["pack", "KV format", "grids", "secret", "wire", "settings", "restart"],
)
def test_name_keys_change_with_what_changes_pages(
    change: Callable[[Served], Served], names: bool, split: bool
) -> None:
    """`names`: both keys change. `split`: the shared key changes where bits depend on the split."""
    before, after = keys(), keys(change(INT8))
    assert (before.own != after.own) == names
    assert (before.shared != after.shared) == (names or split)
    assert (keys(F32).shared != keys(change(F32)).shared) == (names or split)


def test_split_counts_only_where_bits_depend_on_it() -> None:
    for served, differs in ((INT8, False), (F32, True)):
        for parts in (moved(PARTS), PARTS[:2], (replace(PARTS[0], threads=9), *PARTS[1:])):
            assert (keys(served).shared != keys(served, parts).shared) == differs
            assert keys(served).own == keys(served, parts).own
    assert keys(F32).own != keys(INT8).own


@pytest.mark.parametrize("name", ["__version__", "PAGE_VERSION"])
def test_other_version_finds_no_page(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    before = keys()
    monkeypatch.setattr(assignments, name, "9.9")
    assert keys().shared != before.shared
    assert keys().own != before.own


def test_every_key_is_another_one() -> None:
    found = [keys(), keys(rank=1), keys(F32)]
    blobs = {getattr(one, name) for one in found for name in ("shared", "own", "kept_seal", "parked_seal")}
    assert blobs - {b""} == {blob for blob in blobs if len(blob) == 32}
    # Both models share the seals of a machine; rank 1 has no names; INT8 has one key of names.
    assert len(blobs - {b""}) == 3 + 2 * 2
    scopes = SECRETS.scope_key
    assert scopes is not None
    assert not any(one == scopes for one in blobs)
    assert not any(one in (KEPT, PARKED) for one in blobs)
    assert all(one != other for one, other in combinations((*blobs, scopes), 2))


def test_workers_get_no_names_and_seals_of_their_own() -> None:
    root, worker, other = (keys(rank=rank) for rank in range(3))
    assert (worker.shared, worker.own) == (b"", b"")
    assert len({one.kept_seal for one in (root, worker, other)}) == 3
    assert len({one.parked_seal for one in (root, worker, other)}) == 3
    assert keys(parts=PARTS[:2], rank=1) == worker, "another plan does not change a machine's seal"


@pytest.mark.parametrize(
    ("lacks", "keep", "park"), [((), True, True), ((1,), False, False), ((0,), False, False), ((0, 2), False, False)]
)  # fmt: skip
def test_pages_are_kept_where_every_machine_consents(lacks: tuple[int, ...], keep: bool, park: bool) -> None:
    for flag, wanted in (("keeps", keep), ("parks", park)):
        parts = [replace(one, **{flag: rank not in lacks}) for rank, one in enumerate(PARTS)]
        found = [keys(parts=tuple(parts), rank=rank) for rank in range(3)]
        assert all((one.keep if flag == "keeps" else one.park) == wanted for one in found)
        assert all(bool(one.kept_seal) == one.keep for one in found)
        assert all(one.parked_seal for one in found), "a planned change parks pages everywhere"


def test_master_that_keeps_nothing_has_no_kept_seal() -> None:
    found = keys(replace(INT8, pages=PageSecrets(PARKED)))
    assert (found.keep, found.kept_seal) == (False, b"")
    assert found.parked_seal == keys().parked_seal
    assert PageSecrets(PARKED).scope_key is None
    assert replace(INT8, pages=None).assign(3, Assignments(PARTS), 0, {}, None).pages is None


def test_secrets_are_not_shown() -> None:
    assert repr(SECRETS) == "PageSecrets()"
    assert str(KEPT) not in repr(INT8)
    shown = repr(INT8.assign(3, Assignments(PARTS), 0, {}, None))
    for secret in (keys().shared, keys().own, keys().kept_seal, keys().parked_seal):
        assert repr(secret) not in shown


@pytest.mark.parametrize(
    ("lacks", "words"),
    [
        ((), ""),
        ((0,), ""),
        ((0, 1), ""),
        ((1,), "start the worker on attic with --keep-context SIZE"),
        ((1, 2), "start the worker on attic, pi with --keep-context SIZE"),
    ],
)
def test_machines_that_do_not_keep_are_named(lacks: tuple[int, ...], words: str) -> None:
    """A master that does not keep has nothing to say."""
    named = (PARTS[0], replace(PARTS[1], host="attic"), PARTS[2])
    parts = [replace(one, keeps=rank not in lacks) for rank, one in enumerate(named)]
    assert without_disk(parts, "--keep-context").endswith(words)
    assert bool(without_disk(parts, "--keep-context")) == bool(words)
    assert without_disk(parts, "--kv-disk") == ""
