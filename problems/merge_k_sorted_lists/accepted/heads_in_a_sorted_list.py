"""The heads in a sorted list, new ones put in by binary search."""


class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def merge_k_lists(lists):
    entries = sorted(
        ((node.val, -rank, node) for rank, node in enumerate(lists) if node),
        key=lambda entry: entry[0],
    )
    # Ascending and stable; the least shall be at the end, where it is taken off in O(1).
    entries.reverse()
    sentinel = ListNode(None)
    last = sentinel
    while entries:
        _, rank, node = entries.pop()
        last.next = node
        last = node
        node = node.next
        if node is not None:
            entry = (node.val, rank, node)
            low, high = 0, len(entries)
            while low < high:
                middle = (low + high) // 2
                value, other_rank, _ = entries[middle]
                comes_later = node.val < value or (not value < node.val and rank > other_rank)
                if comes_later:
                    low = middle + 1
                else:
                    high = middle
            entries.insert(low, entry)
    return sentinel.next
