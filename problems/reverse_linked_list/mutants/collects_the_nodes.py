# killed_by: test_cost — an O(n) list of all nodes where three pointers do
class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


def reverse_list(head):
    nodes = []
    while head:
        nodes.append(head)
        head = head.next
    for place in range(1, len(nodes)):
        nodes[place].next = nodes[place - 1]
    if not nodes:
        return None
    nodes[0].next = None
    return nodes[-1]
