# killed_by: test_two_nodes — the nodes stay where they are and only their values move
class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def reverse_list(head):
    values = []
    node = head
    while node:
        values.append(node.val)
        node = node.next
    node = head
    while node:
        node.val = values.pop()
        node = node.next
    return head
