"""A generator hands out the nodes one ahead of the relinking."""


class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def walk(node):
    while node is not None:
        following = node.next
        yield node
        node = following


def reverse_list(head: ListNode | None) -> ListNode | None:
    behind = None
    for node in walk(head):
        node.next = behind
        behind = node
    return behind
