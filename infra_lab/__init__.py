"""infra-lab: an LLM inference engine small enough to explain and real enough to run.

    from infra_lab import LLM, SamplingParams
    outputs = LLM("smollm2-135m").generate(["Hello"], SamplingParams(max_tokens=16))

The names below are imported on first use (PEP 562), so that `import infra_lab`, and with it
the command line, does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infra_lab.config import EngineConfig
    from infra_lab.engine.engine_core import EngineCore
    from infra_lab.engine.llm import LLM
    from infra_lab.outputs import CompletionOutput, RequestOutput
    from infra_lab.sampling_params import BeamSearchParams, SamplingParams
    from infra_lab.speculative_config import SpeculativeConfig
    from infra_lab.structured_outputs import StructuredOutputsParams

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "BeamSearchParams",
    "CompletionOutput",
    "EngineConfig",
    "EngineCore",
    "RequestOutput",
    "SamplingParams",
    "SpeculativeConfig",
    "StructuredOutputsParams",
    "__version__",
]

_HOME_OF = {
    "LLM": "infra_lab.engine.llm",
    "EngineCore": "infra_lab.engine.engine_core",
    "BeamSearchParams": "infra_lab.sampling_params",
    "SamplingParams": "infra_lab.sampling_params",
    "SpeculativeConfig": "infra_lab.speculative_config",
    "StructuredOutputsParams": "infra_lab.structured_outputs",
    "EngineConfig": "infra_lab.config",
    "RequestOutput": "infra_lab.outputs",
    "CompletionOutput": "infra_lab.outputs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
