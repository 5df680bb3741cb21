"""One tuple assignment a node, no follow-up, and no ListNode of its own."""


def reverse_list(head):
    new_head = None
    while head:
        head.next, new_head, head = new_head, head, head.next
    return new_head
