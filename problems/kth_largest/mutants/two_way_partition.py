# killed_by: test_no_bad_order — all values that equal the pivot go to one side: O(n^2)
import random


def kth_largest(values: list[int], k: int) -> int:
    if not 1 <= k <= len(values):
        raise ValueError("k is out of range")
    a = list(values)
    low, high, target = 0, len(a) - 1, k - 1
    while low < high:
        chosen = random.randint(low, high)
        a[chosen], a[high] = a[high], a[chosen]
        store = low
        for i in range(low, high):
            if a[i] > a[high]:
                a[i], a[store] = a[store], a[i]
                store += 1
        a[store], a[high] = a[high], a[store]
        if store == target:
            break
        if store < target:
            low = store + 1
        else:
            high = store - 1
    return a[target]
