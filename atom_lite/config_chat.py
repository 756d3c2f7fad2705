"""The part of the settings (`config.py`) that says how a chat model writes calls and thoughts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from atom_lite.settings import json_object, setting

# Names of vLLM's, and some of SGLang's; `text/` has a parser for each.
TOOL_CALL_PARSER_NAMES = (
    *("hermes", "llama3_json", "pythonic", "mistral", "qwen3_coder", "deepseek_v3"),
    *("qwen25", "qwen3_json", "qwen3_xml", "llama3", "llama4_pythonic"),
    *("deepseek_v31", "deepseekv3"),
)
REASONING_PARSER_NAMES = (
    *("deepseek_r1", "qwen3", "deepseek_v3", "glm45", "holo2", "minimax_m2"),
    *("mistral", "seed_oss", "granite"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatConfig:
    """How conversations are written for the model, and how its calls and thoughts are read."""

    tool_call_parser: str = setting(
        "auto",
        "Format that the model writes tool calls in. auto: what the chat template shows, else "
        "hermes.",
        choices=("auto", *TOOL_CALL_PARSER_NAMES),
    )
    enable_auto_tool_choice: bool = setting(
        True, "Let the model decide whether to call tools. Off: tool_choice auto is refused."
    )
    reasoning_parser: str = setting(
        "auto",
        "Format that the model marks its thoughts with. auto: what the chat template shows; none: "
        "thoughts stay part of the answer.",
        choices=("auto", "none", *REASONING_PARSER_NAMES),
    )
    trust_request_chat_template: bool = setting(
        False, "Take a chat template that comes with a request; it is a program that runs here."
    )
    default_chat_template_kwargs: str | None = setting(
        None,
        'JSON object of variables for the chat template, such as {"enable_thinking": false}, that '
        "requests may change. Default: none.",
        metavar="JSON",
    )

    @property
    def template_defaults(self) -> dict[str, Any]:
        """The operator's variables of the template.

        Raises:
            ConfigError: no JSON object.
        """
        if self.default_chat_template_kwargs is None:
            return {}
        return json_object("--default-chat-template-kwargs", self.default_chat_template_kwargs)


DEFAULT_CHAT = ChatConfig()
