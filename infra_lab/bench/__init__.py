"""Throughput, latency and side-by-side benchmarks: commands, never tests."""
