"""The arithmetic of LLM inference as pure functions: what does it cost, does it fit, how fast
can it be at best?

Nothing here is measured and nothing imports torch or numpy: numbers go in with their unit in
the name (`_bytes`, `_s`, `_flops`, `_bytes_per_s`), plain data comes out, and every formula
stands beside its source. A wrong argument raises UsageError with one line.
"""
