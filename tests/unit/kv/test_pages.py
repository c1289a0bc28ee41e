from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tpiedge.errors import InternalError
from tpiedge.kv.pages import NameKeys, PagePool, usual_grain

SIZE = 4
PAGES = 6
KEYS = NameKeys(b"key", b"key")


def make(pages: int = PAGES) -> PagePool:
    return PagePool(pages, SIZE, KEYS)


def filled(pool: PagePool, ids: list[int], scope: str = "") -> list[int]:
    pages, before = [], pool.scope_name(scope)
    for start in range(0, len(ids) - SIZE + 1, SIZE):
        pages.append(pool.allocate())
        before = pool.name_of(before, ids[start : start + SIZE])
        pool.publish(pages[-1], before)
    return pages


def find(pool: PagePool, ids: list[int], scope: str = "") -> list[int]:
    return pool.find(pool.names(ids[:-1], pool.scope_name(scope)))


def test_shared_prefix_pages_are_found_except_the_last_position() -> None:
    pool = make()
    pages = filled(pool, [1, 2, 3, 4, 5, 6, 7, 8])
    assert find(pool, [1, 2, 3, 4, 5, 6, 7, 8, 9]) == pages
    assert find(pool, [1, 2, 3, 4, 5, 6, 7, 8]) == pages[:1]
    assert find(pool, [1, 2, 3, 4, 5, 6, 7, 7, 9]) == pages[:1]
    assert find(pool, [5, 6, 7, 8, 9]) == [], "the same tokens after other ones are another page"


def test_cached_page_is_found_only_in_its_scope() -> None:
    pool = make()
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    pages = filled(pool, text, "a")
    assert find(pool, text, "a") == pages
    assert find(pool, text, "b") == find(pool, text) == []
    own = filled(pool, text[:5], "b")
    assert find(pool, text, "b") == own != pages[:1]
    scopes = ["", "a", "b", "ab", *map(chr, pool.scope_name("a"))]
    names = [
        name
        for scope in scopes
        for name in (pool.scope_name(scope), *pool.names(text, pool.scope_name(scope)))
    ]
    assert len(set(names)) == 3 * len(set(scopes)), "no scope's name is that of a page, or of another scope"


def test_eviction_takes_the_oldest_text_first_and_its_end_first() -> None:
    pool = make(4)
    first, second = filled(pool, [1] * 8), filled(pool, [2] * 8)
    pool.give_back(first)
    pool.give_back(second)
    assert [pool.allocate() for _ in range(4)] == [first[1], first[0], second[1], second[0]]


class Ledger(RuleBasedStateMachine):
    """One page at a time, against lists that say which page must come next and whose memory goes back."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = make()
        self.counts: Counter[int] = Counter()
        self.texts: dict[int, tuple[int, ...]] = {}  # of published pages
        self.cold, self.blank = set(range(PAGES)), set[int]()
        self.idle: list[int] = []  # the least recently used first
        self.untold: list[int] = []

    @rule()
    def allocate(self) -> None:
        if self.blank or self.cold:
            kind = self.blank or self.cold
            expected = min(kind)
            kind.remove(expected)
        elif self.idle:
            expected = self._evict()
        else:
            with pytest.raises(InternalError):
                self.pool.allocate()
            return
        assert self.pool.allocate() == expected
        self.counts[expected] = 1
        if expected in self.untold:
            self.untold.remove(expected)

    @rule(data=st.data(), first=st.integers(0, 3))
    def publish(self, data: st.DataObject, first: int) -> None:
        private = sorted(page for page in +self.counts if page not in self.texts)
        if private:
            page, text = data.draw(st.sampled_from(private)), (first, *range(1, SIZE))
            self.pool.publish(page, self.name(text))
            if text not in self.texts.values():
                self.texts[page] = text

    @rule(first=st.integers(0, 3))
    def share(self, first: int) -> None:
        text = (first, *range(1, SIZE))
        found = self.pool.find([self.name(text)])
        assert found == [page for page, own in self.texts.items() if own == text]
        assert self.pool.idle_among(found) == sum(page in self.idle for page in found)
        for page in found:
            self.pool.share(page)
            self.counts[page] += 1
            if page in self.idle:
                self.idle.remove(page)

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        held = sorted(+self.counts)
        pages = data.draw(st.lists(st.sampled_from(held), unique=True)) if held else []
        self.pool.give_back(pages)
        for page in reversed(pages):
            self.counts[page] -= 1
            if not self.counts[page]:
                if page in self.texts:
                    self.idle.append(page)
                else:
                    self.blank.add(page)

    @rule(most=st.integers(0, PAGES))
    def shrink(self, most: int) -> None:
        self.pool.shrink(most)
        while PAGES - len(self.cold) > most and (self.blank or self.idle):
            page = max(self.blank) if self.blank else self._evict()
            self.blank.discard(page)
            self.cold.add(page)
            self.untold.append(page)

    @rule(most=st.integers(0, 3))
    def tell(self, most: int) -> None:
        told, self.untold = self.untold[:most], self.untold[most:]
        assert self.pool.discarded(most) == tuple(told)
        assert not set(told) & set(+self.counts)

    def name(self, text: tuple[int, ...]) -> bytes:
        return self.pool.name_of(self.pool.scope_name(""), text)

    def _evict(self) -> int:
        page = self.idle.pop(0)
        del self.texts[page]
        return page

    @invariant()
    def a_page_is_in_one_state(self) -> None:
        held = set(+self.counts)
        states = [*self.cold, *self.blank, *self.idle, *held]
        assert sorted(states) == list(range(PAGES))
        assert self.pool.held == len(held)
        assert self.pool.available == PAGES - len(held)
        assert self.pool.in_memory == PAGES - len(self.cold)


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_page_names_depend_on_key_and_preceding_tokens() -> None:
    pool = make()
    text, before = [1, 2, 3, 4, 5, 6, 7, 8, 9], pool.scope_name("")
    names = [*pool.names(text, before)]
    assert len(names) == 2
    assert names == [pool.name_of(before, [1, 2, 3, 4]), pool.name_of(names[0], [5, 6, 7, 8])]
    for keys in (NameKeys(b"another key", b"key"), NameKeys(b"another key", b"another key")):
        other = PagePool(PAGES, SIZE, keys)
        assert not set(other.names(text, other.scope_name(""))) & set(names)


def test_own_names_do_not_depend_on_the_split_and_are_those_of_no_scope() -> None:
    pools = [PagePool(PAGES, SIZE, NameKeys(split, b"own")) for split in (b"a split", b"another", b"own")]
    assert [pool.keys.split_shows for pool in pools] == [True, True, False]
    assert len({pool.scope_name("one", own=True) for pool in pools}) == 1
    assert len({pool.scope_name("one") for pool in pools}) == 3
    assert pools[2].scope_name("one") != pools[2].scope_name("one", own=True)


def test_partial_pages_have_names_of_their_first_tokens() -> None:
    pool = make()
    before = pool.scope_name("")
    names = [pool.name_of(before, [7, 8, 9][:count]) for count in (1, 2, 3)]
    for text in ([7, 8, 9], [7, 8, 9, 10], [7, 8, 9, 10, 11]):
        assert [*pool.partial_names(text, before)] == names
    assert [*pool.partial_names([], before)] == []


def test_unpublished_page_becomes_blank() -> None:
    pool = make(2)
    pages = filled(pool, [1] * 8)
    pool.unpublish(pages[1:])
    assert find(pool, [1] * 9) == pages[:1]
    pool.give_back(pages)
    assert pool.allocate() == pages[1], "blank pages come before idle ones"


def test_memory_shrinks_only_after_a_drop_of_two_grains() -> None:
    pool = PagePool(100, SIZE, KEYS, 10)
    assert [pool.bound(needed) for needed in (50, 41, 31, 30)] == [50, 50, 50, 30]


@given(st.integers(1, 300), st.integers(1, 400), st.lists(st.integers(0, 300), max_size=30))
def test_memory_bound_covers_the_need_with_little_excess(pages: int, grain: int, needs: list[int]) -> None:
    pool = PagePool(pages, SIZE, KEYS, grain)
    for needed in needs:
        held = pool.bound(min(needed, pages))
        assert min(needed, pages) <= held <= pages
        assert held < min(needed, pages) + 3 * grain


def test_default_grain_depends_on_page_count_and_size() -> None:
    assert usual_grain(1600, 8 << 20) == 100
    assert usual_grain(16, 1 << 20) == 4
    assert usual_grain(16, 0) >= 1
