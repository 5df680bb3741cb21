# killed_by: test_cost — all nodes in one list: O(N) memory
class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def merge_k_lists(lists):
    nodes = []
    for node in lists:
        while node:
            nodes.append(node)
            node = node.next
    nodes.sort(key=lambda node: node.val)
    dummy = tail = ListNode(None)
    for node in nodes:
        tail.next = node
        tail = node
    tail.next = None
    return dummy.next
