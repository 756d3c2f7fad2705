"""Which parser a model needs: by name, or by how its chat template writes calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.text.tool_calls.deepseek_v3 import CALLS_BEGIN, DeepSeekV3Parser
from atom_lite.text.tool_calls.hermes import HermesParser
from atom_lite.text.tool_calls.llama3_json import Llama3JsonParser
from atom_lite.text.tool_calls.mistral import MistralParser
from atom_lite.text.tool_calls.pythonic import PythonicParser
from atom_lite.text.tool_calls.qwen3_coder import Qwen3CoderParser

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atom_lite.text.tool_calls.parser import ToolCallParser

# The names of `--tool-call-parser`: vLLM's, and SGLang's of the same formats.
TOOL_CALL_PARSERS: Mapping[str, type[ToolCallParser]] = {
    "hermes": HermesParser,
    "qwen25": HermesParser,
    "qwen3_json": HermesParser,
    "llama3_json": Llama3JsonParser,
    "llama3": Llama3JsonParser,
    "pythonic": PythonicParser,
    "llama4_pythonic": PythonicParser,
    "mistral": MistralParser,
    "qwen3_coder": Qwen3CoderParser,
    "qwen3_xml": Qwen3CoderParser,
    "deepseek_v3": DeepSeekV3Parser,
    "deepseek_v31": DeepSeekV3Parser,
    "deepseekv3": DeepSeekV3Parser,
}

# What a template of each format holds; the first that fits. The last is in the words of Llama 3.
_SIGNS = (
    ("<function=", "qwen3_coder"),
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    (CALLS_BEGIN, "deepseek_v3"),
    ("func_name1(", "pythonic"),
    ("<|python_start|>", "pythonic"),
    ('"parameters": dictionary of argument name', "llama3_json"),
    ("<|python_tag|>", "llama3_json"),
)


def recognise(template: str) -> str | None:
    """The name of the format that a chat template writes calls in."""
    return next((name for sign, name in _SIGNS if sign in template), None)
