"""queue.PriorityQueue with a number for each list."""

from queue import PriorityQueue


class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def merge_k_lists(lists):
    waiting = PriorityQueue()
    for number, head in enumerate(lists):
        if head is not None:
            waiting.put((head.val, number, head))
    dummy = ListNode(val=None)
    current = dummy
    while not waiting.empty():
        _, number, current.next = waiting.get()
        current = current.next
        if current.next is not None:
            waiting.put((current.next.val, number, current.next))
    return dummy.next
