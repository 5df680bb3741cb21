from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader, GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.errors import ModelLoadError
from infra_lab.models.gguf_header import is_gguf, read_header


def add_every_kind_of_value(writer: GGUFWriter) -> None:
    writer.add_uint8("kinds.uint8", 200)
    writer.add_int8("kinds.int8", -100)
    writer.add_uint16("kinds.uint16", 60000)
    writer.add_int16("kinds.int16", -30000)
    writer.add_uint64("kinds.uint64", 1 << 40)
    writer.add_int64("kinds.int64", -(1 << 40))
    writer.add_float64("kinds.float64", 0.1)
    writer.add_bool("kinds.bool", True)
    writer.add_string("kinds.string", "né 中")
    writer.add_array("kinds.integers", [1, -2, 3])
    writer.add_array("kinds.strings", ["a", "", "中文"])


@pytest.fixture(scope="module")
def file(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny.config("llama", num_hidden_layers=1)
    path = tmp_path_factory.mktemp("header") / "model.gguf"
    return tiny.gguf(path, config, tiny.weights(config), add=add_every_kind_of_value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


def test_metadata_is_what_the_official_reader_reads(file: Path) -> None:
    official = GGUFReader(file)
    wanted = {
        name: field.contents()
        for name, field in official.fields.items()
        if not name.startswith("GGUF.")
    }
    assert read_header(file).metadata == wanted


def test_tensor_places_are_those_of_the_official_reader(file: Path) -> None:
    official = {
        tensor.name: (
            tuple(reversed(tensor.shape.tolist())),
            tensor.tensor_type,
            tensor.data_offset,
            tensor.n_bytes,
        )
        for tensor in GGUFReader(file).tensors
    }
    ours = {
        info.name: (info.shape, info.quantization, info.offset_bytes, info.num_bytes)
        for info in read_header(file).tensors.values()
    }
    assert ours == official


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_file_cut_anywhere_is_refused_with_one_message(
    data: st.DataObject, file: Path, folder: Path
) -> None:
    whole = file.read_bytes()
    end_of_last_tensor = max(
        info.offset_bytes + info.num_bytes for info in read_header(file).tensors.values()
    )
    length = data.draw(st.integers(0, end_of_last_tensor - 1))
    cut = folder / "cut.gguf"
    cut.write_bytes(whole[:length])
    with pytest.raises(ModelLoadError, match=r"cut\.gguf"):
        read_header(cut)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_damaged_header_is_read_or_refused_but_never_crashes(
    data: st.DataObject, file: Path, folder: Path
) -> None:
    content = bytearray(file.read_bytes())
    header_end = min(info.offset_bytes for info in read_header(file).tensors.values())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, header_end - 1))] = data.draw(st.integers(0, 255))
    damaged = folder / "damaged.gguf"
    damaged.write_bytes(content)
    with contextlib.suppress(ModelLoadError):
        read_header(damaged)


@pytest.mark.parametrize("version", [0, 1, 4, struct.unpack("<I", struct.pack(">I", 3))[0]])
def test_an_unknown_version_is_refused_by_number(version: int, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, 0, 0))
    with pytest.raises(ModelLoadError, match=f"version {version} is not supported"):
        read_header(path)


def test_other_files_are_not_gguf(tmp_path: Path, file: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"not a model at all, but long enough")
    assert is_gguf(file)
    assert not is_gguf(other)
    with pytest.raises(ModelLoadError, match="not a GGUF file"):
        read_header(other)


def test_an_empty_or_absent_file_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.gguf"
    empty.touch()
    with pytest.raises(ModelLoadError, match=r"empty\.gguf"):
        read_header(empty)
    with pytest.raises(ModelLoadError, match=r"absent\.gguf"):
        read_header(tmp_path / "absent.gguf")
