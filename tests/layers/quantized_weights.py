"""Quantized weights of every kind, for tests: made by hypothesis, or one of a named kind."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from infra_lab.formats.quantized_weight import QuantizedWeight

NF4 = torch.tensor(
    [
        *(-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0),
        *(0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0),
    ]
)
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
BYTES = torch.arange(256, dtype=torch.uint8)
TABLES = {
    "int4": torch.arange(16.0) - 8,
    "uint4": torch.arange(16.0),
    "nf4": NF4,
    "mxfp4": torch.cat((E2M1, -E2M1)),
    "int2": torch.arange(4.0) - 2,
    "int3": torch.arange(8.0) - 4,
    "int5": torch.arange(32.0) - 16,
    "uint6": torch.arange(64.0),
    "int8": torch.arange(256.0) - 128,
    "uint8": torch.arange(256.0),
    "between": torch.arange(256.0) - 100,
    "e4m3": BYTES.view(torch.float8_e4m3fn).float(),
    "e5m2": BYTES.view(torch.float8_e5m2).float(),
    "any6": torch.linspace(-3, 4, 64).sin(),
}


def quantized_weight(
    table: str,
    out_features: int,
    in_features: int,
    group_size: int,
    shift: str = "none",
    scattered: bool = False,
    half_scales: bool = True,
    seed: int = 0,
) -> QuantizedWeight:
    """shift: "none", "zeros" (integers), "means" (any zeros) or "offsets"."""
    generator = torch.Generator().manual_seed(seed)
    values, groups = TABLES[table], -(-in_features // group_size)
    shape = (out_features, groups)

    def numbers() -> torch.Tensor:
        drawn = torch.randn(shape, generator=generator) / 16
        return drawn.half().float() if half_scales else drawn

    finite = values.isfinite().nonzero().flatten().to(torch.uint8)
    picked = torch.randint(len(finite), (out_features, in_features), generator=generator)
    zeros = torch.randint(-8, 16, shape, generator=generator).float()
    return QuantizedWeight(
        codes=finite[picked],
        values=values,
        scales=numbers(),
        bits=len(values).bit_length() - 1,
        group_size=group_size,
        zeros={"zeros": zeros, "means": zeros + numbers()}.get(shift),
        offsets=numbers() if shift == "offsets" else None,
        g_idx=torch.randint(groups, (in_features,), generator=generator) if scattered else None,
    )


@st.composite
def quantized_weights(draw: st.DrawFn) -> QuantizedWeight:
    """Sizes that no panel, group or part divides."""
    return quantized_weight(
        draw(st.sampled_from(sorted(TABLES))),
        draw(st.integers(1, 100)),
        draw(st.integers(1, 90) | st.sampled_from([288, 320, 577, 900])),
        draw(st.integers(1, 40) | st.sampled_from([64, 100, 128, 1000])),
        draw(st.sampled_from(["none", "zeros", "means", "offsets"])),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.integers(0, 99)),
    )
