"""infra-lab's GPU kernels: Triton functions, each beside a reference in plain torch.

The name is shared with a package on PyPI. `MARKER` tells ours from that one;
`infra_lab.kernels_guard` looks for it. Importing this module stays free of side effects,
because transformers imports whatever is called `kernels` to read its version.
"""

MARKER = "infra-lab"
