"""Two small C kernels for fp32 on a CPU, compiled on first use where there is a compiler."""
