"""atom_lite: an OpenAI-compatible LLM server with stall-free, dynamically chunked prefill."""

__version__ = "0.1.0"
