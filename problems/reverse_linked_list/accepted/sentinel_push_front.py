"""A sentinel whose list grows at the front; groups are cut off and reversed as whole lists."""


class ListNode:
    __slots__ = ("next", "val")

    def __init__(self, val=0, next=None):  # noqa: A002
        self.val = val
        self.next = next


def reverse_list(head):
    sentinel = ListNode()
    while head is not None:
        node = head
        head = head.next
        node.next = sentinel.next
        sentinel.next = node
    return sentinel.next


def reverse_k_group(head, k):
    if k <= 0:
        raise ValueError(k)
    if k == 1:
        return head
    sentinel = tail = ListNode()
    while head:
        end, steps = head, 1
        while steps < k and end.next:
            end = end.next
            steps += 1
        if steps < k:
            break
        rest, end.next = end.next, None
        tail.next = reverse_list(head)
        tail = head
        head = rest
    tail.next = head
    return sentinel.next
