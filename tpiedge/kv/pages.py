"""Rank 0's ledger of KV pages and prefixes. Pure.

Full pages are published under names. Sequences that begin alike share these pages.

1. A page is cold (without memory), blank (empty), idle (published, but not held), or held. `_counts` says how many
   sequences hold a page.
2. A page's name is the keyed hash of its tokens and the previous page's name. The first page uses the scope's name
   instead. Sequences share within a scope only. No client can give two texts one name.
3. A published page is never written again.
4. Blank pages are allocated first, then cold pages, then the least recently used idle page. When a sequence ends, its
   last pages become idle first.
"""

import hashlib
import heapq
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from tpiedge.errors import InternalError

_NAME_BYTES = 16


@dataclass(frozen=True)
class NameKeys:
    """Keys of at most 64 bytes: of the pages that a scope shares, and of one request's own pages. The keys are equal
    where a page's bits do not depend on the split. Elsewhere `shared` changes with the split."""

    shared: bytes = field(repr=False)
    own: bytes = field(repr=False)

    @property
    def split_shows(self) -> bool:
        return self.shared != self.own


class PagePool:
    """Manages `pages` pages of `positions` positions. `grain`: the number of pages that give back memory together; 0
    means never."""

    def __init__(self, pages: int, positions: int, keys: NameKeys, grain: int = 0) -> None:
        self.pages = pages
        self.positions = positions
        self.keys = keys
        self._grain, self._bound = min(grain, pages), 0
        self._counts = [0] * pages
        #: The name of each page, and the page of each name.
        self._published: dict[int, bytes] = {}
        self._named: dict[bytes, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._blank: list[int] = []  # a heap, like `_cold`
        self._cold = list(range(pages))
        self._discarded: dict[int, None] = {}  # cold pages that `discarded` did not name yet

    @property
    def available(self) -> int:
        return len(self._blank) + len(self._cold) + len(self._idle)

    @property
    def held(self) -> int:
        return self.pages - self.available

    @property
    def in_memory(self) -> int:
        return self.pages - len(self._cold)

    def pages_of(self, positions: int) -> int:
        return -(-positions // self.positions)

    def idle_among(self, pages: Sequence[int]) -> int:
        return sum(page in self._idle for page in pages)

    def holders(self, page: int) -> int:
        return self._counts[page]

    def allocate(self) -> int:
        """Returns a page to write to, held once. Raises InternalError."""
        if self._blank:
            page = heapq.heappop(self._blank)
        elif self._cold:
            page = heapq.heappop(self._cold)
            self._discarded.pop(page, None)
        elif self._idle:
            page = self._evict()
        else:
            raise InternalError("no page of the KV cache is available")
        self._counts[page] = 1
        return page

    def share(self, page: int) -> None:
        if self._counts[page] == 0:
            del self._idle[page]  # a KeyError here would mean that a blank page is shared
        self._counts[page] += 1

    def give_back(self, pages: Sequence[int]) -> None:
        for page in reversed(pages):
            self._counts[page] -= 1
            if self._counts[page] == 0:
                if page in self._published:
                    self._idle[page] = None
                else:
                    heapq.heappush(self._blank, page)

    def scope_name(self, scope: str, *, own: bool = False) -> bytes:
        """Returns the name before a first page. `own`: `scope` is a request, whose pages no other one finds."""
        key, kind = (self.keys.own, b"own") if own else (self.keys.shared, b"scope")
        return _hash(key, kind, scope.encode()).digest()

    def name_of(self, before: bytes, tokens: Sequence[int]) -> bytes:
        return _hash(self.keys.own, b"page", before + array("I", tokens).tobytes()).digest()

    def names(self, ids: Sequence[int], before: bytes) -> Iterator[bytes]:
        """Yields names of the full pages of `ids` after `before`."""
        for start in range(0, len(ids) - self.positions + 1, self.positions):
            before = self.name_of(before, ids[start : start + self.positions])
            yield before

    def partial_names(self, ids: Sequence[int], before: bytes) -> Iterator[bytes]:
        """Yields names of pages that are not full, with the first 1, 2, ... tokens of `ids`. They are not published."""
        hashed = _hash(self.keys.own, b"page", before)
        for token in ids[: self.positions - 1]:
            hashed.update(array("I", (token,)).tobytes())
            yield hashed.digest()

    def publish(self, page: int, name: bytes) -> None:
        """Publishes a full page unless another page has its name."""
        if name not in self._named and page not in self._published:
            self._named[name] = page
            self._published[page] = name

    def unpublish(self, pages: Iterable[int]) -> None:
        for page in pages:
            if page in self._published:
                del self._named[self._published.pop(page)]

    def is_published(self, page: int, name: bytes) -> bool:
        return self._published.get(page) == name

    def find(self, names: Iterable[bytes]) -> list[int]:
        """Returns the published pages of the first `names`, up to an unknown name. Callers hold them with `share`."""
        return [self._named[name] for name in takewhile(self._named.__contains__, names)]

    def bound(self, needed: int) -> int:
        """Returns how many pages may have memory, if sequences need `needed` pages."""
        enough = min(-(-needed // self._grain) * self._grain, self.pages)
        if not enough <= self._bound < enough + 2 * self._grain:
            self._bound = enough
        return self._bound

    def fit(self, lengths: Iterable[int]) -> None:
        """Takes memory from pages beyond the need of sequences with the given `lengths`."""
        if self._grain:
            self.shrink(self.bound(sum(map(self.pages_of, lengths))))

    def shrink(self, most: int) -> None:
        """Takes memory from pages that no sequence holds, until at most `most` pages have memory."""
        while self.in_memory > most and (self._blank or self._idle):
            if self._blank:
                page = max(self._blank)
                self._blank.remove(page)
                heapq.heapify(self._blank)
            else:
                page = self._evict()
            heapq.heappush(self._cold, page)
            self._discarded[page] = None

    def discarded(self, most: int) -> tuple[int, ...]:
        """Returns up to `most` pages whose memory nodes must free. Names each page once."""
        told = list(self._discarded)[:most]
        for page in told:
            del self._discarded[page]
        return tuple(told)

    def _evict(self) -> int:
        page, _ = self._idle.popitem(last=False)
        del self._named[self._published.pop(page)]
        return page


def _hash(key: bytes, kind: bytes, data: bytes) -> hashlib.blake2b:
    return hashlib.blake2b(data, digest_size=_NAME_BYTES, key=key, person=kind)


def usual_grain(pages: int, page_bytes: int) -> int:
    """Returns a sixteenth of the cache, but at least 4 MiB, in pages."""
    return max(1, pages // 16, (4 << 20) // max(1, page_bytes))
