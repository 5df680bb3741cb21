# killed_by: test_cost_of_iterables — O(k) comparisons a value: min over all present elements
import heapq


class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def merge_k_lists(lists):
    heap = []
    for i, node in enumerate(lists):
        if node:
            heapq.heappush(heap, (node.val, i, node))
    dummy = tail = ListNode(None)
    while heap:
        _, i, node = heapq.heappop(heap)
        tail.next = node
        tail = node
        if node.next:
            heapq.heappush(heap, (node.next.val, i, node.next))
    return dummy.next


def merge_iterables(*iterables):
    present = []
    for iterator in map(iter, iterables):
        for value in iterator:
            present.append((value, iterator))
            break
    while present:
        least = min(range(len(present)), key=lambda i: present[i][0])
        value, iterator = present[least]
        yield value
        for value in iterator:
            present[least] = value, iterator
            break
        else:
            del present[least]
