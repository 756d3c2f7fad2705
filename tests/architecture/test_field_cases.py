"""Every reported failure of other servers that concerns us has a test that replays it.

The numbers are those of the list of reports that the project collected; reports about embeddings
join when those are served.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
E2E, API = "e2e/test_field_cases.py", "unit/api/"
PARSERS = "unit/text/tool_calls/test_formats.py"
SERVING, SCHEDULER = "e2e/test_serving.py", "unit/scheduler/"

# number: what went wrong, where it is tested
CASES: dict[int, tuple[str, str, str]] = {
    # stop strings
    2: ("a stop of many tokens leaks", E2E, "test_stop_strings_of_many_tokens_neither_leak"),
    3: ("a stop inside a token", E2E, "test_stop_that_begins_or_ends_inside_a_token_cuts_there"),
    5: ("text is held for a long stop", "property/test_stop_strings.py", "test_matcher_follows"),
    6: ("the beginning of a stop shows", E2E, "test_stop_strings_of_many_tokens_neither_leak"),
    8: ("held text comes twice", E2E, "test_stop_strings_of_many_tokens_neither_leak"),
    12: ("lists longer than the cut text", E2E, "test_lists_beside_a_text_end_where_a_stop_cuts"),
    15: ("min_tokens masks one end of several", E2E, "test_min_tokens_holds_back_every_end"),
    # characters of several tokens
    17: ("half a character in a delta", E2E, "test_characters_of_many_tokens_are_never_shown"),
    18: ("chunks are counted as tokens", E2E, "test_characters_of_many_tokens_are_never_shown"),
    20: ("parts of a character have no bytes", E2E, "test_bytes_of_parts_of_characters_are_their"),
    21: (
        "a decoder that changes its mind",
        "property/test_detokenizer.py",
        "test_stream_of_any_other_decoder_equals_decoding",
    ),
    # log probabilities
    26: ("logprobs alone fail", API + "test_listed_answers.py", "test_chat_logprobs_alone"),
    27: ("completions' shape in chat", API + "test_listed_answers.py", "test_chat_logprobs_alone"),
    29: ("infinities in JSON", E2E, "test_impossible_tokens_leave_the_json_finite"),
    30: ("echo without output", E2E, "test_echo_needs_no_output"),
    32: (
        "prompt figures after a cache hit",
        "e2e/test_logprob_oracle.py",
        "test_numbers_equal_the_oracles_for_any_chunk_budget",
    ),
    33: (
        "figures of another request",
        "pipeline/test_log_probabilities.py",
        "test_what_is_told_of_prompt_and_output_is_the_models",
    ),
    35: ("choices of a stream miss entries", E2E, "test_every_choice_of_several_lists_all"),
    # bad requests
    14: ("stop token id out of the vocabulary", E2E, "test_bad_requests_are_a_400_and_the_engine"),
    23: ("lone surrogate", E2E, "test_bad_requests_are_a_400_and_the_engine_goes_on"),
    24: ("NUL cuts the prompt", E2E, "test_nul_does_not_cut_the_prompt"),
    36: ("logit_bias out of the vocabulary", E2E, "test_bad_requests_are_a_400_and_the_engine"),
    38: ("too long prompt is a 200", SERVING, "test_too_long_prompt_is_a_400_before_the_stream"),
    39: ("no code in the error", API + "test_faults.py", "test_too_long_prompt_is_a_400_with_code"),
    41: ("arguments that are no JSON", E2E, "test_bad_requests_are_a_400_and_the_engine_goes_on"),
    42: ("one request id twice", E2E, "test_one_request_id_may_be_used_by_many_at_once"),
    44: ("guided_json is ignored", E2E, "test_case_44_older_names_of_structured_output"),
    # aborts
    45: ("a client leaves", SERVING, "test_client_that_leaves_a_stream_frees_its_blocks"),
    47: ("a neighbour leaves", SERVING, "test_a_neighbour_that_leaves_changes_nothing"),
    48: ("token after an abort", SCHEDULER + "test_scheduler.py", "test_no_token_follows_an_abort"),
    50: ("choices of a client that left", E2E, "test_case_50_all_choices_of_a_client_that_left"),
    # usage
    51: ("usage on each chunk", E2E, "say"),
    53: ("cached tokens missing in a stream", E2E, "test_cached_tokens_are_told_in_a_stream_too"),
    54: (
        "recomputation counted as a hit",
        SCHEDULER + "test_preemption.py",
        "test_recomputation_after_preemption_is_no_cache_hit",
    ),
    # tool calls and reasoning
    9: ("stop string inside thoughts", API + "test_tools.py", "test_case_9_"),
    11: ("stop string inside a call", API + "test_tools.py", "test_case_11_"),
    56: ("required, and no call", "e2e/test_tools.py", "test_case_56_"),
    57: ("reasons differ between modes", "e2e/test_tools.py", "test_case_57_"),
    59: ("one piece with several calls", API + "test_tools.py", "test_case_59_"),
    60: ("no arguments", PARSERS, "test_case_60_"),
    62: ("unfinished call leaks", API + "test_tools.py", "test_case_62_"),
    63: ("arguments as an object", PARSERS, "test_case_63_"),
    65: ("tools with log probabilities", API + "test_tools.py", "test_case_65_"),
    66: ("thought and answer in one piece", "unit/text/test_reasoning.py", "test_case_66_"),
    # cache, scheduler, parallelism
    69: ("whole prompt cached", SERVING, "test_whole_prompt_in_cache_recomputes_the_last_block"),
    71: ("a stop string changes the next", SERVING, "test_a_request_that_ended_on_a_stop_string"),
    72: ("preemption changes output", "e2e/test_field_cases_pool.py", "test_case_72_"),
    74: ("several choices and preemption", "e2e/test_field_cases_pool.py", "test_case_74_"),
    75: ("thrashing", "e2e/test_field_cases_pool.py", "test_case_75_"),
    77: (
        "a long prompt blocks short ones",
        SCHEDULER + "test_scheduler.py",
        "test_a_long_prompt_delays_short_ones_by_its_chunks_only",
    ),
    78: (
        "a lone prompt gets a small budget",
        SCHEDULER + "test_scheduler.py",
        "test_only_a_step_without_decodes_may_use_the_larger_budget",
    ),
    80: (
        "one chunk at a time over stages",
        SCHEDULER + "test_in_flight.py",
        "test_a_long_prompt_fills_all_stages_with_its_chunks",
    ),
    81: ("seed over stages", "pipeline/test_pipeline_engine.py", "test_stages_give_the_tokens_of"),
    83: ("seeded choices are all the same", SERVING, "test_seeded_choices_differ_and_come_again"),
    # metrics and health
    84: ("gauges stay after aborts", E2E, "test_clients_that_leave_at_any_point_leave_nothing"),
    86: ("aborts counted in part", E2E, "test_case_86_an_abort_counts_in_every_metric"),
    87: ("first tokens are not requests", E2E, "test_two_hundred_at_once_are_all_answered"),
    89: ("series missing at start", "e2e/test_field_cases_pool.py", "test_case_89_"),
    90: ("every path fails", API + "test_openapi.py", "test_every_path_answers_as_documented"),
    92: ("SIGTERM cuts streams", "e2e/test_processes.py", "test_sigterm_lets_streams_end"),
}


@cache
def functions_of(path: str) -> list[str]:
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize("number", sorted(CASES))
def test_case_has_its_test(number: int) -> None:
    what, path, name = CASES[number]
    assert any(found.startswith(name) for found in functions_of(path)), f"{number}: {what}"
