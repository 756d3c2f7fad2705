"""From a request's fields to `SamplingParams`, with the model's defaults and limits.

The model's generation_config.json gives the defaults that the operator chose to keep
(`--generation-config`); a request's own value always wins.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from atom_lite.api.not_yet import not_yet
from atom_lite.errors import RequestError
from atom_lite.messages import SamplingParams

if TYPE_CHECKING:
    from atom_lite.api.schema import GenerationRequest
    from atom_lite.messages import EngineReady

# Below the first, logits / temperature overflows, and the draw is greedy anyway; up to the second
# it is nearly so, but low-precision logits may still overflow. Same bounds as vLLM.
_GREEDY_BELOW = 1e-5
_LOWEST_TEMPERATURE = 0.01
_SEED_MASK = 2**63 - 1
_USED_DEFAULTS = frozenset({"temperature", "top_p", "top_k", "min_p", "max_new_tokens"})

logger = logging.getLogger(__name__)


class SamplingBuilder:
    """Makes the sampling parameters of each sequence.

    Args:
        ready: vocabulary, context length and the model's defaults.
        base_seed: seeds the stream from which requests without a seed get theirs, so that a
            restarted server that sees the same requests in the same order answers the same.
        scripted: whether `vllm_xargs.script` is taken (load format `scripted`).
    """

    def __init__(self, ready: EngineReady, *, base_seed: int, scripted: bool) -> None:
        self._ready = ready
        self._seeds = random.Random(base_seed)
        self._scripted = scripted
        defaults = ready.default_sampling
        self._temperature = float(defaults.get("temperature", 1.0))
        self._top_p = float(defaults.get("top_p", 1.0))
        self._top_k = int(defaults.get("top_k", 0))
        self._min_p = float(defaults.get("min_p", 0.0))
        for name in defaults.keys() - _USED_DEFAULTS:
            if defaults[name] != 1:
                logger.warning(
                    "the model's default %s = %g is not applied: not supported yet",
                    name,
                    defaults[name],
                )

    def build(self, body: GenerationRequest, max_tokens: int) -> SamplingParams:
        """The parameters of one sequence.

        Args:
            body: the validated request.
            max_tokens: as settled by admission.

        Raises:
            RequestError: min_tokens above max_tokens, or a stop token outside the vocabulary.
        """
        min_tokens = body.min_tokens or 0
        if min_tokens > max_tokens:
            raise RequestError(
                f"'min_tokens' = {min_tokens} is more than the {max_tokens} tokens allowed",
                param="min_tokens",
            )
        seed = body.seed if body.seed is not None else self._seeds.getrandbits(63)
        top_k = body.top_k if body.top_k is not None else self._top_k
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self._usable_temperature(body.temperature),
            top_p=body.top_p if body.top_p is not None else self._top_p,
            top_k=0 if top_k <= 0 or top_k >= self._ready.vocab_size else top_k,
            min_p=body.min_p if body.min_p is not None else self._min_p,
            seed=seed & _SEED_MASK,
            min_tokens=min_tokens,
            ignore_eos=bool(body.ignore_eos),
            stop_token_ids=self._stop_token_ids(body),
        )

    def script(self, body: GenerationRequest) -> list[int] | None:
        """The ids that a scripted model shall emit.

        Raises:
            RequestError: the model is a real one, or the script is no list of token ids.
        """
        if not body.vllm_xargs or "script" not in body.vllm_xargs:
            return None
        param, script = "vllm_xargs.script", body.vllm_xargs["script"]
        if not self._scripted:
            raise RequestError(f"'{param}' needs --load-format scripted", param=param)
        if not isinstance(script, list) or not all(type(item) is int for item in script):
            raise RequestError(f"'{param}' must be a list of token ids", param=param)
        self.check_ids(script, param)
        return script

    def check_ids(self, token_ids: list[int], param: str) -> None:
        """Refuse ids outside the model's vocabulary.

        Raises:
            RequestError: 400 that names the id and the limit.
        """
        vocab_size = self._ready.vocab_size
        if not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocab_size):
            return
        bad = next(item for item in token_ids if not 0 <= item < vocab_size)
        raise RequestError(
            f"'{param}': token id {bad} is outside the vocabulary of {vocab_size}", param=param
        )

    def _usable_temperature(self, asked: float | None) -> float:
        temperature = self._temperature if asked is None else asked
        return 0.0 if temperature < _GREEDY_BELOW else max(temperature, _LOWEST_TEMPERATURE)

    def _stop_token_ids(self, body: GenerationRequest) -> tuple[int, ...]:
        ids = body.stop_token_ids or []
        self.check_ids(ids, "stop_token_ids")
        return tuple(dict.fromkeys(ids))


def check_xargs(body: GenerationRequest) -> None:
    """Refuse extra arguments that we know nothing of.

    Raises:
        RequestError: 400 that names the first unknown one.
    """
    for name in body.vllm_xargs or {}:
        if name != "script":
            raise not_yet(f"vllm_xargs.{name}", f"'vllm_xargs.{name}'")
