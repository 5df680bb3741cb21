"""FlashAttention tile by tile: the running maximum and sum, and what each new tile corrects."""

from __future__ import annotations

import math
from typing import Any

NUM_QUERIES, NUM_KEYS = 4, 8
TILE_QUERIES, TILE_KEYS = 2, 2


def score(query: int, key: int) -> float:
    """Scores that make the maximum move, so that corrections are seen."""
    return round(2 * math.sin(1.7 * query + 0.9 * key) + 0.25 * key, 2)


def value(key: int) -> float:
    """One number a key stands for its value vector."""
    return float(key + 1)


def figure() -> dict[str, Any]:
    frames: list[dict[str, Any]] = []
    done = [[False] * NUM_KEYS for _ in range(NUM_QUERIES)]
    maxima = [-math.inf] * NUM_QUERIES
    sums = [0.0] * NUM_QUERIES
    outputs = [0.0] * NUM_QUERIES
    for top in range(0, NUM_QUERIES, TILE_QUERIES):
        for left in range(0, NUM_KEYS, TILE_KEYS):
            corrections = []
            for query in range(top, top + TILE_QUERIES):
                tile = [score(query, key) for key in range(left, left + TILE_KEYS)]
                largest = max(maxima[query], *tile)
                correction = math.exp(maxima[query] - largest)
                weights = [math.exp(one - largest) for one in tile]
                sums[query] = sums[query] * correction + sum(weights)
                outputs[query] = outputs[query] * correction + sum(
                    weight * value(left + place) for place, weight in enumerate(weights)
                )
                maxima[query] = largest
                corrections.append(correction)
                for key in range(left, left + TILE_KEYS):
                    done[query][key] = True
            frames.append(_frame(top, left, done, maxima, sums, outputs, corrections))
    return {
        "kind": "flash-tiles",
        "scores": [[score(query, key) for key in range(NUM_KEYS)] for query in range(NUM_QUERIES)],
        "tile": [TILE_QUERIES, TILE_KEYS],
        "frames": frames,
    }


def exact_rows() -> list[tuple[float, float, float]]:
    """Maximum, sum and output of each row by the definition of softmax, in one go."""
    rows = []
    for query in range(NUM_QUERIES):
        scores = [score(query, key) for key in range(NUM_KEYS)]
        largest = max(scores)
        weights = [math.exp(one - largest) for one in scores]
        total = sum(weights)
        output = sum(weight * value(key) for key, weight in enumerate(weights)) / total
        rows.append((largest, total, output))
    return rows


def _frame(
    top: int,
    left: int,
    done: list[list[bool]],
    maxima: list[float],
    sums: list[float],
    outputs: list[float],
    corrections: list[float],
) -> dict[str, Any]:
    finished = left + TILE_KEYS == NUM_KEYS
    moved = any(0 < one < 1 for one in corrections)
    rows = f"{top}-{top + TILE_QUERIES - 1}"
    keys = f"{left}-{left + TILE_KEYS - 1}"
    if left == 0:
        en = f"Queries {rows} are loaded once, with the first tile of keys: m and l begin there."
        zh = f"载入 query {rows}（只载入一次）和第一块 key：m 与 l 由此开始。"
    elif moved:
        en = (
            f"Keys {keys} hold a larger score: m moves, and what was summed before is scaled "
            "by exp(m_old - m_new)."
        )
        zh = f"key {keys} 中出现更大的分数：m 更新，之前的累加量乘以 exp(m_old − m_new)。"
    else:
        en = f"Keys {keys} hold no larger score: the factor is 1, the tile is simply added."
        zh = f"key {keys} 没有更大的分数：修正系数为 1，直接累加。"
    if finished:
        en += " The last tile: O = acc / l is written; no score ever left the chip."
        zh += "最后一块：写出 O = acc / l；分数矩阵从未写回显存。"
    return {
        "text": {"en": en, "zh": zh},
        "tile": [top, left],
        "done": [[int(one) for one in row] for row in done],
        "rows": [
            {
                "m": round(maxima[query], 4) if sums[query] else None,
                "l": round(sums[query], 6) if sums[query] else None,
                "acc": round(outputs[query], 6) if sums[query] else None,
                "factor": round(corrections[query - top], 6)
                if top <= query < top + TILE_QUERIES and left
                else None,
                "o": round(outputs[query] / sums[query], 6) if done[query][-1] else None,
            }
            for query in range(NUM_QUERIES)
        ],
    }
