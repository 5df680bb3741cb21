"""A plain list as the queue, with a head that moves; strict comparison keeps equal values."""


def window_maximum(values: list[int], window: int) -> list[int]:
    n = len(values)
    if window > n or window <= 0:
        raise ValueError(window)
    queue: list[int] = []
    head = 0
    maxima = [values[0]] * (n - window + 1)
    for i in range(n):
        while len(queue) > head and values[queue[-1]] < values[i]:
            del queue[-1]
        queue.append(i)
        if queue[head] == i - window:
            head += 1
        if i + 1 >= window:
            maxima[i + 1 - window] = values[queue[head]]
    return maxima
