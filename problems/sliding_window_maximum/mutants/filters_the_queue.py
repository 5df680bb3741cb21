# killed_by: test_lines — rebuilds the queue at every step: O(window) lines, no comparison
def window_maximum(values: list[int], window: int) -> list[int]:
    if not 1 <= window <= len(values):
        raise ValueError("the window does not fit")
    queue: list[int] = []
    maxima = []
    for index, value in enumerate(values):
        queue = [i for i in queue if i > index - window]
        while queue and values[queue[-1]] <= value:
            queue.pop()
        queue.append(index)
        if index >= window - 1:
            maxima.append(values[queue[0]])
    return maxima
