"""Next greater value to the right, found with a stack; then hop from maximum to maximum."""


def window_maximum(values: list[int], window: int) -> list[int]:
    if window < 1 or window > len(values):
        raise ValueError("no such window")
    end = len(values)
    next_greater = [end] * end
    stack: list[int] = []
    for i in range(end):
        while stack and values[i] > values[stack[-1]]:
            next_greater[stack.pop()] = i
        stack.append(i)
    out = []
    best = 0
    for start in range(end - window + 1):
        best = max(best, start)
        while next_greater[best] < start + window:
            best = next_greater[best]
        out.append(values[best])
    return out
