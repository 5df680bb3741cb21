"""Pointer variables in a helper that reverses up to a given node."""


class ListNode:
    def __init__(self, val, next=None):  # noqa: A002
        self.val = val
        self.next = next


class _Solver:
    def reverse_until(self, first, stop):
        p, q = stop, first
        while q is not stop:
            r = q.next
            q.next = p
            p = q
            q = r
        return p

    def groups(self, head, k):
        dummy = ListNode(-1)
        dummy.next = head
        pre = dummy
        end = dummy
        while end.next is not None:
            i = 0
            while i < k and end is not None:
                end = end.next
                i += 1
            if end is None:
                break
            start, nxt = pre.next, end.next
            pre.next = self.reverse_until(start, nxt)
            pre = start
            end = pre
        return dummy.next


def reverse_list(head):
    return _Solver().reverse_until(head, None)


def reverse_k_group(head, k):
    if not isinstance(k, int) or k < 1:
        raise ValueError("k < 1")
    return _Solver().groups(head, k)
