"""The OpenAI-compatible HTTP server over the engine: `infra-lab serve`."""
