"""Heap entries of a class with its own order; no tuples, and an iterator class."""

from heapq import heapify, heappop, heappush, heapreplace


class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


class Entry:
    __slots__ = ("node", "rank")

    def __init__(self, node, rank):
        self.node = node
        self.rank = rank

    def __lt__(self, other):
        if self.node.val < other.node.val:
            return True
        if other.node.val < self.node.val:
            return False
        return self.rank < other.rank


def merge_k_lists(lists):
    heap = [Entry(node, rank) for rank, node in enumerate(lists) if node is not None]
    heapify(heap)
    head = tail = None
    while heap:
        entry = heap[0]
        node = entry.node
        if tail is None:
            head = node
        else:
            tail.next = node
        tail = node
        entry.node = node.next
        if entry.node is None:
            heappop(heap)
        else:
            heapreplace(heap, entry)
    return head


class _Merged:
    def __init__(self, iterables):
        self._iterables = iterables
        self._heap = None

    def __iter__(self):
        return self

    def __next__(self):
        if self._heap is None:
            self._heap = []
            for rank, iterator in enumerate(map(iter, self._iterables)):
                self._read(rank, iterator)
        else:
            self._read(*self._last)
        if not self._heap:
            self._last = (0, iter(()))
            raise StopIteration
        value, *last = heappop(self._heap)
        self._last = last
        return value

    def _read(self, rank, iterator):
        for value in iterator:
            heappush(self._heap, (value, rank, iterator))
            break


def merge_iterables(*iterables):
    return _Merged(iterables)
