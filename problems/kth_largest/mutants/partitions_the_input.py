# killed_by: test_input_is_left_alone — swaps inside the list of the caller
import random


def kth_largest(values: list[int], k: int) -> int:
    if not 1 <= k <= len(values):
        raise ValueError("k is out of range")
    a = values
    low, high, target = 0, len(a) - 1, k - 1
    while low < high:
        pivot = a[random.randint(low, high)]
        i, j = low, high
        while i <= j:
            while a[i] > pivot:
                i += 1
            while a[j] < pivot:
                j -= 1
            if i <= j:
                a[i], a[j] = a[j], a[i]
                i += 1
                j -= 1
        if target <= j:
            high = j
        elif target >= i:
            low = i
        else:
            break
    return a[target]
