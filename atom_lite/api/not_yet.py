"""The one table of request fields that would change the answer and are not implemented.

A request that asks for one of them gets a 400 that names it, never an answer that ignores it. A
value that asks for nothing (n = 1, a penalty of 0, null) passes. To implement a field, take its row
out and declare it in the schema.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atom_lite.api.faults import shown
from atom_lite.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

# Field -> values that ask for nothing. None (absent or null) always does.
NOT_YET: dict[str, tuple[Any, ...]] = {
    # choosing among sequences, telling of single tokens
    "use_beam_search": (False,),
    "logprob_token_ids": (),
    # shaping the distribution
    "length_penalty": (1,),
    "repetition_detection": (),
    "repeat_penalty": (1,),
    "typical_p": (1,),
    "mirostat": (0,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
    "dynatemp_range": (0,),
    "custom_logit_processor": (),
    "custom_params": (),
    "logits_processors": ([],),
    # tools and reasoning
    "functions": (),
    "function_call": ("none",),
    "stop_regex": (),
    # other servers' names of what has another name here
    "no_stop_trim": (False,),
    "max_new_tokens": (),
    "n_predict": (-1,),
    # the prompt
    "suffix": ("",),
    "prompt_embeds": (),
    "mm_processor_kwargs": (),
    # other kinds of output
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "spaces_between_special_tokens": (True,),
    "kv_transfer_params": (),
    "return_hidden_states": (False,),
    "lora_path": (),
    "verbosity": ("medium",),
}


# What means something in chat only; there these are fields of the schema.
_OF_CHAT: dict[str, tuple[Any, ...]] = {
    "tools": (),
    "tool_choice": ("none",),
    "include_reasoning": (True,),
    "thinking_token_budget": (),
    "chat_template": (),
}


def refuse_not_yet(fields: Mapping[str, Any]) -> None:
    """Check the raw fields of a request against the table.

    Raises:
        RequestError: 400 with the field as `param`.
    """
    for name in fields.keys() & NOT_YET.keys():
        value = fields[name]
        if value is None or any(_same(value, neutral) for neutral in NOT_YET[name]):
            continue
        raise not_yet(name, f"'{name}' = {shown(value)}")
    for name in fields.keys() & _OF_CHAT.keys():
        value = fields[name]
        if value is not None and not any(_same(value, neutral) for neutral in _OF_CHAT[name]):
            raise RequestError(f"'{name}' is a field of /v1/chat/completions", param=name)


def not_yet(param: str, what: str) -> RequestError:
    """The 400 for something that a client may ask for and we cannot do yet."""
    return RequestError(f"{what} is not supported yet", param=param, code="not_supported_yet")


def _same(value: Any, neutral: Any) -> bool:
    """Equality that does not take 0 for False or 1 for True."""
    return isinstance(value, bool) is isinstance(neutral, bool) and bool(value == neutral)
