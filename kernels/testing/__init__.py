"""The testing ground of the kernels: what proves them right and good without a GPU.

- `interpreter`: Triton's interpreter with a GPU's arithmetic, so that a test on a CPU means
  something.
- `sanitizer`: lanes out of bounds, races between programs, integer overflow, unwritten output.
- `aot`: compiles every kernel for real GPUs and holds the machine code to a table that may
  only improve.

Importing this package loads neither torch nor triton.
"""
