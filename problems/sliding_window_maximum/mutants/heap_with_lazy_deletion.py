# killed_by: test_comparisons — a heap takes O(log n) comparisons for rising values
import heapq


def window_maximum(values: list[int], window: int) -> list[int]:
    if not 1 <= window <= len(values):
        raise ValueError("the window does not fit")
    heap: list[tuple[int, int]] = []
    maxima = []
    for index, value in enumerate(values):
        heapq.heappush(heap, (-value, index))
        while heap[0][1] <= index - window:
            heapq.heappop(heap)
        if index >= window - 1:
            maxima.append(-heap[0][0])
    return maxima
