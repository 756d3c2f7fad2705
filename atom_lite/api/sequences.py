"""From prompts and their sampling parameters to the sequences of a request.

Each prompt becomes one sequence per candidate. They share the prompt's KV (`group`), differ in
their seed, and only the first asks for the prompt's log probabilities.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from atom_lite.api.answered_prompt import AnsweredPrompt
from atom_lite.api.generation import SequenceOutput
from atom_lite.api.sampling import seed_of_choice
from atom_lite.config_scheduling import Objectives
from atom_lite.messages import SubmitSequence
from atom_lite.text.output import OutputText

if TYPE_CHECKING:
    from atom_lite.api.admission import PromptInput
    from atom_lite.api.chat_formats import MessageForm
    from atom_lite.api.engine_client import EngineClient
    from atom_lite.api.schema import GenerationRequest
    from atom_lite.messages import Grammar, SamplingParams
    from atom_lite.observability.metrics import Metrics
    from atom_lite.text.tokenizer import Tokenizer


class SequenceMaker:
    """Makes the sequences of one request, in the order of the answer's choices.

    Args:
        engine: numbers the sequences.
        tokenizer: of the model.
        metrics: get a record of each sequence.
        body: the validated request.
        script: ids that a scripted model shall emit.
        grammar: that every output token must keep to.
        form: how thoughts and calls are found in outputs.
    """

    def __init__(
        self,
        engine: EngineClient,
        tokenizer: Tokenizer,
        metrics: Metrics,
        body: GenerationRequest,
        *,
        script: list[int] | None,
        grammar: Grammar | None,
        form: MessageForm | None = None,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._body = body
        self._script = script
        self._grammar = grammar
        self._form = form
        self._shown_special_ids = (
            frozenset() if form is None else tokenizer.special_ids_of(form.marks)
        )
        self._outputs: list[SequenceOutput] = []

    def make(
        self, prompts: list[PromptInput], sampling: list[SamplingParams]
    ) -> list[SequenceOutput]:
        """All sequences: those of the first prompt, then those of the next.

        Args:
            prompts: as the engine gets them.
            sampling: the parameters of each prompt's first candidate.
        """
        for prompt, first in zip(prompts, sampling, strict=True):
            self._add_prompt(prompt, first)
        return self._outputs

    def _add_prompt(self, prompt: PromptInput, first: SamplingParams) -> None:
        answered = AnsweredPrompt(
            self._tokenizer, prompt, wants_logprobs=first.num_prompt_logprobs is not None
        )
        count = self._body.num_candidates
        self._metrics.start_prompt(self._body.num_choices)
        group = None
        for candidate in range(count):
            sequence_id = self._engine.next_sequence_id()
            if count > 1 and group is None:
                group = sequence_id
            sampling = first
            if candidate > 0:
                sampling = msgspec.structs.replace(
                    first, seed=seed_of_choice(first.seed, candidate), num_prompt_logprobs=None
                )
            self._add(answered, sequence_id, sampling, group)

    def _add(
        self, prompt: AnsweredPrompt, sequence_id: int, sampling: SamplingParams, group: int | None
    ) -> None:
        body = self._body
        own = Objectives.from_milliseconds(body.ttft_slo_ms, body.tbt_slo_ms)
        message = SubmitSequence(
            sequence_id=sequence_id,
            prompt_token_ids=prompt.token_ids,
            sampling=sampling,
            arrival_time=time.monotonic(),
            priority=body.priority or 0,
            cache_salt=body.cache_salt,
            group=group,
            ttft_slo_seconds=own.ttft_seconds,
            tbt_slo_seconds=own.tbt_seconds,
            grammar=self._grammar,
            script=self._script,
        )
        record = self._metrics.start_sequence(
            num_prompt_tokens=len(prompt.token_ids),
            max_tokens=sampling.max_tokens,
            arrival_time=message.arrival_time,
            objectives=own,
        )
        output = SequenceOutput(
            len(self._outputs),
            message,
            prompt,
            self._text(prompt, sampling),
            record,
            self._hidden_ids(sampling),
            parser=None if self._form is None else self._form.message(),
            lists_tokens=body.lists_tokens,
        )
        self._outputs.append(output)

    def _text(self, prompt: AnsweredPrompt, sampling: SamplingParams) -> OutputText:
        body = self._body
        return OutputText(
            self._tokenizer,
            prompt.token_ids,
            stops=body.stops,
            include_stop_str_in_output=bool(body.include_stop_str_in_output),
            skip_special_tokens=body.skip_special_tokens is not False,
            min_tokens=sampling.min_tokens,
            reasoning=None if self._form is None else self._form.splitter(),
            shown_special_ids=self._shown_special_ids,
        )

    def _hidden_ids(self, sampling: SamplingParams) -> frozenset[int]:
        """Ids that end the sequence and whose text is not shown."""
        if self._body.include_stop_str_in_output:
            return frozenset()
        ends = set(sampling.stop_token_ids)
        if not sampling.ignore_eos or self._grammar is not None:  # a grammar ends with EOS
            ends.update(self._engine.ready.eos_token_ids)
        return frozenset(ends)
