"""From a request's fields to `SamplingParams`, with the model's defaults and limits.

The model's generation_config.json gives the defaults that the operator chose to keep
(`--generation-config`, `--override-generation-config`); a request's own value always wins.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypeVar

import msgspec

from atom_lite.api.named_tokens import NamedTokens
from atom_lite.api.not_yet import not_yet
from atom_lite.errors import RequestError
from atom_lite.messages import SamplingParams

if TYPE_CHECKING:
    from atom_lite.api.schema import GenerationRequest
    from atom_lite.config import ModelConfig
    from atom_lite.messages import EngineReady
    from atom_lite.text.tokenizer import Tokenizer

# Below the first, logits / temperature overflows, and the draw is greedy anyway; up to the second
# it is nearly so, but low-precision logits may still overflow. Same bounds as vLLM.
_GREEDY_BELOW = 1e-5
_LOWEST_TEMPERATURE = 0.01
# Beyond these a repetition penalty decides alone already, and float32 logits may overflow.
_LOWEST_REPETITION_PENALTY = 1e-4
_HIGHEST_REPETITION_PENALTY = 1e4
_SEED_MASK = 2**63 - 1
_UINT64_MASK = 2**64 - 1

Number = TypeVar("Number", int, float)


class SamplingBuilder:
    """Makes the sampling parameters of each sequence.

    Args:
        ready: vocabulary, context length and the model's defaults.
        tokenizer: for fields that name tokens by their text.
        model: the operator's settings: `seed` seeds the stream from which requests without a seed
            get theirs, so that a restarted server that sees the same requests in the same order
            answers the same; `load_format` scripted takes `vllm_xargs.script`.
    """

    def __init__(self, ready: EngineReady, tokenizer: Tokenizer, model: ModelConfig) -> None:
        self.tokens = NamedTokens(tokenizer, ready.vocab_size)
        self._ready = ready
        self._seeds = random.Random(model.seed)
        self._scripted = model.load_format == "scripted"
        self._max_logprobs = ready.vocab_size if model.max_logprobs < 0 else model.max_logprobs
        defaults = ready.default_sampling
        self._temperature = float(defaults.get("temperature", 1.0))
        self._top_p = float(defaults.get("top_p", 1.0))
        self._top_k = int(defaults.get("top_k", 0))
        self._min_p = float(defaults.get("min_p", 0.0))
        self._repetition_penalty = float(defaults.get("repetition_penalty", 1.0))

    def build(self, body: GenerationRequest, max_tokens: list[int]) -> list[SamplingParams]:
        """The parameters of the first choice of each prompt.

        Args:
            body: the validated request.
            max_tokens: of each prompt, as settled by admission.

        Raises:
            RequestError: min_tokens above max_tokens, more log probabilities than the server
                tells, or a token outside the vocabulary.
        """
        min_tokens = body.min_tokens or 0
        if min_tokens > min(max_tokens):
            raise RequestError(
                f"'min_tokens' = {min_tokens} is more than the {min(max_tokens)} tokens allowed",
                param="min_tokens",
            )
        shared = self._shared(body, min_tokens)
        self._check_something_may_come(shared)
        return [
            msgspec.structs.replace(shared, max_tokens=limit, seed=self._seed(body))
            for limit in max_tokens
        ]

    def _shared(self, body: GenerationRequest, min_tokens: int) -> SamplingParams:
        top_k = _first(body.top_k, self._top_k)
        allowed = self.tokens.unique(body.allowed_token_ids, "allowed_token_ids")
        return SamplingParams(
            max_tokens=0,
            temperature=_usable_temperature(_first(body.temperature, self._temperature)),
            top_p=_first(body.top_p, self._top_p),
            top_k=0 if top_k <= 0 or top_k >= self._ready.vocab_size else top_k,
            min_p=_first(body.min_p, self._min_p),
            min_tokens=min_tokens,
            ignore_eos=bool(body.ignore_eos),
            stop_token_ids=self.tokens.unique(body.stop_token_ids, "stop_token_ids"),
            presence_penalty=body.presence_penalty or 0.0,
            frequency_penalty=body.frequency_penalty or 0.0,
            repetition_penalty=_usable_penalty(
                _first(body.repetition_penalty, self._repetition_penalty)
            ),
            logit_bias=self.tokens.biases(body.logit_bias),
            allowed_token_ids=allowed or None,
            bad_words=self.tokens.bad_words(body.bad_words),
            num_logprobs=self._num_logprobs(body),
            num_prompt_logprobs=self._num_prompt_logprobs(body),
        )

    def _seed(self, body: GenerationRequest) -> int:
        if body.seed is None or body.seed == -1:  # vLLM and llama.cpp take -1 for "any"
            return self._seeds.getrandbits(63)
        return body.seed & _SEED_MASK

    def _num_logprobs(self, body: GenerationRequest) -> int | None:
        asked = self.limit_logprobs(body.num_logprobs, body.num_logprobs_param)
        if asked is None and body.num_candidates > body.num_choices:
            return 0  # the best are chosen by their own log probabilities
        return asked

    def _num_prompt_logprobs(self, body: GenerationRequest) -> int | None:
        """Of `prompt_logprobs` and an echo with log probabilities whatever wants more."""
        asked = self.limit_logprobs(body.prompt_logprobs, "prompt_logprobs")
        echoed = None
        if body.echoes_prompt:
            echoed = self.limit_logprobs(body.num_logprobs, body.num_logprobs_param)
        return max((number for number in (asked, echoed) if number is not None), default=None)

    def limit_logprobs(self, asked: int | None, param: str) -> int | None:
        """How many alternatives to each token a request gets; -1 asks for the whole vocabulary.

        Raises:
            RequestError: more than `--max-logprobs`.
        """
        if asked is None:
            return None
        wanted = self._ready.vocab_size if asked < 0 else min(asked, self._ready.vocab_size)
        if wanted > self._max_logprobs:
            raise RequestError(
                f"'{param}' = {asked} asks for {wanted}, more than the {self._max_logprobs} that "
                "this server gives (--max-logprobs)",
                param=param,
            )
        return wanted

    def _check_something_may_come(self, sampling: SamplingParams) -> None:
        """Refuse an allowed list of ends alone where min_tokens forbids them.

        Raises:
            RequestError: no token could be drawn.
        """
        if not sampling.min_tokens or sampling.allowed_token_ids is None:
            return
        ends = {*self._ready.eos_token_ids, *sampling.stop_token_ids}
        if ends.issuperset(sampling.allowed_token_ids):
            raise RequestError(
                f"'min_tokens' = {sampling.min_tokens} forbids every token that "
                "'allowed_token_ids' allows",
                param="allowed_token_ids",
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
        self.tokens.check(script, param)
        return script


def seed_of_choice(seed: int, choice: int) -> int:
    """The seed of one of several choices: different, and the same whenever the request comes again.

    The first choice keeps the request's seed, so that asking for more leaves it as it is. The
    others mix their number in. Source: Steele et al., "Fast splittable pseudorandom number
    generators", the finalizer of SplitMix64.
    """
    if choice == 0:
        return seed
    mixed = (seed + choice * 0x9E3779B97F4A7C15) & _UINT64_MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _UINT64_MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _UINT64_MASK
    return (mixed ^ (mixed >> 31)) & _SEED_MASK


def _first(asked: Number | None, default: Number) -> Number:
    return default if asked is None else asked


def _usable_temperature(temperature: float) -> float:
    return 0.0 if temperature < _GREEDY_BELOW else max(temperature, _LOWEST_TEMPERATURE)


def _usable_penalty(penalty: float) -> float:
    return min(max(penalty, _LOWEST_REPETITION_PENALTY), _HIGHEST_REPETITION_PENALTY)


def check_xargs(body: GenerationRequest) -> None:
    """Refuse extra arguments that we know nothing of.

    Raises:
        RequestError: 400 that names the first unknown one.
    """
    for name in body.vllm_xargs or {}:
        if name != "script":
            raise not_yet(f"vllm_xargs.{name}", f"'vllm_xargs.{name}'")
