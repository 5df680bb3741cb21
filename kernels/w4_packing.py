"""4-bit weights as the W4A16 kernel reads them, and exact ways there from GPTQ and AWQ.

How do 4-bit checkpoints differ, and why repack them? A weight is scale * (code - zero), with one
scale and one zero for a group of inputs of each output. GPTQ packs eight inputs into an int32,
AWQ eight outputs in an interleaved order; both make a thread pick single nibbles. Here a row
of codes is one output, and a block of 64 inputs takes 32 bytes: byte j holds input j in its low
and input j + 32 in its high nibble. So both nibbles of a tile of bytes are plain tiles of inputs,
and nothing is shuffled in the kernel. A group's scale and zero lie in one word of four bytes, the
least that a GPU copies asynchronously: the bits of the scale in fp32, the last four of which are
the zero instead. Scales of fp16 and bf16 have no use for those bits.

Sources: Frantar et al. 2022 (GPTQ) and its checkpoints' QuantLinear; Lin et al. 2023 (AWQ), its
"GEMM" layout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from kernels.checks import (
    FLOATS,
    require_adjacent,
    require_dimensions,
    require_dtype,
    require_shape,
)
from kernels.errors import KernelInputError

HALF = 32  # inputs of a block that lie in low nibbles, and as many in high ones
BLOCK = 2 * HALF
PADDED_TO = 128  # rows of codes are filled up to whole tiles of the kernel
SYMMETRIC_ZERO = 8
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # nibble i of an int32 holds output AWQ_ORDER[i] of eight


@dataclass(frozen=True)
class PackedW4:
    """A weight of K inputs and N outputs, 4 bits each: scale * (code - zero).

    codes: uint8 [N, K rounded up to 128, / 2]. words: int32 [groups, N], the bits of fp32 scales
    with zeros (0 to 15) in place of the last four. group: inputs that share a scale; the last
    group may have fewer. in_features: K. permutation: None, or int64 [K]: input i of the codes is
    input permutation[i] of the layer.
    Raises KernelInputError for tensors that do not fit each other.
    """

    codes: torch.Tensor
    words: torch.Tensor
    group: int
    in_features: int
    permutation: torch.Tensor | None = None

    def __post_init__(self) -> None:
        """So a product need not look at what was looked at when the weight was packed."""
        name = "PackedW4"
        require_dtype(name, "codes", self.codes, (torch.uint8,))
        require_dtype(name, "words", self.words, (torch.int32,))
        require_dimensions(name, "codes", self.codes, "[N, K/2]")
        if self.in_features < 1 or self.group < 1 or self.group % HALF:
            raise KernelInputError(
                f"{name}: in_features is {self.in_features} and group {self.group}, wanted at "
                f"least 1 and a multiple of {HALF}"
            )
        outputs, padded = self.codes.shape[0], -(-self.in_features // PADDED_TO) * PADDED_TO
        require_shape(name, "codes", self.codes, (outputs, padded // 2))
        require_shape(name, "words", self.words, (-(-self.in_features // self.group), outputs))
        require_adjacent(name, "codes", self.codes)
        require_adjacent(name, "words", self.words)
        if self.permutation is not None:
            require_dtype(name, "permutation", self.permutation, (torch.int64,))
            require_shape(name, "permutation", self.permutation, (self.in_features,))

    @property
    def out_features(self) -> int:
        return self.codes.shape[0]

    @property
    def groups(self) -> int:
        return self.words.shape[0]

    @property
    def scales(self) -> torch.Tensor:
        """fp32 [groups, N]."""
        return (self.words & ~15).view(torch.float32)

    @property
    def zeros(self) -> torch.Tensor:
        """int32 [groups, N], 0 to 15."""
        return self.words & 15

    @property
    def weight_bytes(self) -> int:
        """Bytes that a product reads of it: what bounds a decoding step."""
        return self.codes.numel() + 4 * self.words.numel()

    def to(self, device: torch.device | str) -> PackedW4:
        permutation = None if self.permutation is None else self.permutation.to(device)
        codes, words = self.codes.to(device), self.words.to(device)
        return replace(self, codes=codes, words=words, permutation=permutation)

    def dequantized(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The weight [K, N], inputs in the layer's order, computed and returned in `dtype`."""
        halves = torch.stack((self.codes & 15, self.codes >> 4), 1)  # [N, 2, bytes]
        blocks = halves.view(self.out_features, 2, -1, HALF).transpose(1, 2)
        codes = blocks.reshape(self.out_features, -1)[:, : self.in_features].t()
        group_of = torch.arange(self.in_features, device=codes.device) // self.group
        weight = (codes - self.zeros[group_of]).to(dtype) * self.scales[group_of].to(dtype)
        if self.permutation is None:
            return weight
        return torch.empty_like(weight).index_copy_(0, self.permutation, weight)


def pack_int4(
    codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, group: int
) -> PackedW4:
    """Packs codes [K, N], integers from 0 to 15.

    scales: [groups, N] of a float type, finite, groups = ceil(K / group); those of fp32 are
    rounded to 20 significant bits, those of fp16 and bf16 are kept exactly. zeros: integers
    [groups, N] from 0 to 15; None for symmetric weights, whose zero is 8. group: a multiple of
    32, or -1 for all of K. K need be no multiple of the group: the last group is then shorter.
    Raises KernelInputError for what does not fit.
    """
    if codes.dim() != 2 or 0 in codes.shape:
        raise KernelInputError(
            f"pack_int4: codes have shape {tuple(codes.shape)}, wanted [K, N] of at least 1 x 1"
        )
    inputs, outputs = codes.shape
    if group == -1:
        group = -(-inputs // PADDED_TO) * PADDED_TO
    if group < 1 or group % HALF:
        raise KernelInputError(
            f"pack_int4: group {group}, wanted a multiple of {HALF}, or -1 for all of K"
        )
    groups = -(-inputs // group)
    require_dtype("pack_int4", "scales", scales, FLOATS)
    require_shape("pack_int4", "scales", scales, (groups, outputs))
    if zeros is not None:
        require_shape("pack_int4", "zeros", zeros, (groups, outputs))
    _require_nibbles("codes", codes)
    words = _words(scales)
    if zeros is None:
        words = words | SYMMETRIC_ZERO
    else:
        _require_nibbles("zeros", zeros)
        words = words | zeros.int()
    padded = -(-inputs // PADDED_TO) * PADDED_TO
    rows = torch.zeros(outputs, padded, dtype=torch.uint8, device=codes.device)
    rows[:, :inputs] = codes.t()
    low, high = rows.view(outputs, -1, 2, HALF).unbind(2)
    packed = (low | high << 4).reshape(outputs, padded // 2)
    return PackedW4(packed, words, group, inputs)


def from_gptq(
    qweight: torch.Tensor,
    qzeros: torch.Tensor,
    scales: torch.Tensor,
    g_idx: torch.Tensor | None = None,
    *,
    group: int | None = None,
    version: int = 1,
) -> PackedW4:
    """From a 4-bit GPTQ checkpoint.

    qweight: int32 [K/8, N], input 8r + i in bits 4i of row r. qzeros: int32 [groups, N/8].
    scales: [groups, N]. g_idx: [K], the group of each input; where they are out of order
    (act-order) the inputs are sorted by group, and the result's `permutation` says how.
    group: inputs of a group, needed only where it does not follow from g_idx or K.
    version: 1 ("gptq") stores zeros less one, modulo 16; 2 ("gptq_v2") as they are.
    Raises KernelInputError for what does not fit.
    """
    if version not in (1, 2):
        raise KernelInputError(f"from_gptq: version {version}, wanted 1 or 2")
    outputs = _require_packed("from_gptq", qweight, "[K/8, N]", qzeros, scales, columns_packed=1)
    codes = _nibbles(qweight).transpose(1, 2).reshape(-1, outputs)
    zeros = _nibbles(qzeros).reshape(len(qzeros), outputs)
    if version == 1:
        zeros = zeros + 1 & 15  # field by field: a sum of packed words would carry
    inputs = len(codes)
    permutation = None
    if g_idx is not None:
        require_shape("from_gptq", "g_idx", g_idx, (inputs,))
        g_idx = g_idx.long()
        if inputs and not 0 <= int(g_idx.min()) <= int(g_idx.max()) < len(scales):
            raise KernelInputError(
                f"from_gptq: g_idx from {int(g_idx.min())} to {int(g_idx.max())}, but there are "
                f"{len(scales)} groups of scales"
            )
        if group is None and inputs:
            group = int(torch.bincount(g_idx).max())
        permutation = torch.argsort(g_idx, stable=True)
        codes = codes[permutation]
    group = _group_of("from_gptq", group, inputs, len(scales))
    if g_idx is not None and permutation is not None:
        in_order = torch.arange(inputs, device=g_idx.device)
        if not torch.equal(g_idx[permutation], in_order // group):
            raise KernelInputError(
                f"from_gptq: g_idx does not give every group {group} inputs (the last one the "
                "rest): groups of different sizes, as a shard of an act-order layer has them, "
                "are not supported: shard after repacking"
            )
        if torch.equal(permutation, in_order):
            permutation = None
    packed = pack_int4(codes, scales, zeros, group if len(scales) > 1 else -1)
    return replace(packed, permutation=permutation)


def from_awq(
    qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor, *, group: int | None = None
) -> PackedW4:
    """From a 4-bit AWQ checkpoint of the "GEMM" layout.

    qweight: int32 [K, N/8] and qzeros: int32 [groups, N/8], whose nibble i is output
    AWQ_ORDER[i] of eight. scales: [groups, N]. group: needed only where K is no multiple of it.
    Raises KernelInputError for what does not fit.
    """
    outputs = _require_packed("from_awq", qweight, "[K, N/8]", qzeros, scales, columns_packed=8)
    place = torch.tensor(AWQ_ORDER).argsort().to(qweight.device)
    codes = _nibbles(qweight)[..., place].reshape(-1, outputs)
    zeros = _nibbles(qzeros)[..., place].reshape(-1, outputs)
    group = _group_of("from_awq", group, len(codes), len(scales))
    return pack_int4(codes, scales, zeros, group if len(scales) > 1 else -1)


def _nibbles(words: torch.Tensor) -> torch.Tensor:
    """int32 [...] as its eight nibbles [..., 8], the lowest first."""
    return words.unsqueeze(-1) >> torch.arange(0, 32, 4, device=words.device) & 15


def _words(scales: torch.Tensor) -> torch.Tensor:
    """The bits of the scales in fp32, rounded to the nearest with four zero bits at the end."""
    bits = scales.float().contiguous().view(torch.int32)
    rounded = bits + 7 + (bits >> 4 & 1) & ~15
    if not bool((scales.isfinite() & rounded.view(torch.float32).isfinite()).all()):
        raise KernelInputError("pack_int4: scales must be finite")
    return rounded


def _require_nibbles(name: str, values: torch.Tensor) -> None:
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise KernelInputError(f"pack_int4: {name} are {values.dtype}, wanted integers")
    if values.numel():
        least, most = (int(value) for value in values.aminmax())
        if least < 0 or most > 15:
            raise KernelInputError(f"pack_int4: {name} from {least} to {most}, wanted 0 to 15")


def _require_packed(
    name: str,
    qweight: torch.Tensor,
    wanted: str,
    qzeros: torch.Tensor,
    scales: torch.Tensor,
    columns_packed: int,
) -> int:
    """Checks the tensors of a checkpoint and returns N."""
    require_dtype(name, "qweight", qweight, (torch.int32,))
    require_dtype(name, "qzeros", qzeros, (torch.int32,))
    if qweight.dim() != 2 or scales.dim() != 2:
        raise KernelInputError(
            f"{name}: qweight has shape {tuple(qweight.shape)} and scales {tuple(scales.shape)}, "
            f"wanted {wanted} and [groups, N]"
        )
    outputs = qweight.shape[1] * columns_packed
    if outputs % 8:
        raise KernelInputError(f"{name}: N is {outputs}, wanted a multiple of 8: qzeros pack eight")
    require_shape(name, "scales", scales, (len(scales), outputs))
    require_shape(name, "qzeros", qzeros, (len(scales), outputs // 8))
    return outputs


def _group_of(name: str, group: int | None, inputs: int, groups: int) -> int:
    if group is None:
        if groups == 0 or inputs % groups:
            raise KernelInputError(
                f"{name}: K is {inputs}, which is no multiple of {groups} groups: pass group="
            )
        group = inputs // groups
    if group == -1:
        group = inputs
    if group < 1 or -(-inputs // group) != groups:
        raise KernelInputError(
            f"{name}: K is {inputs} and group {group}, but there are {groups} groups of scales"
        )
    return group
