"""The protocol's checks fail when they should."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.accuracy_arms import Arm, ArmResult
from benchmarks.accuracy_verdicts import judge, markdown

ITEMS = 500
RIGHT = [index % 5 < 3 for index in range(ITEMS)]


def result(name: str, *, lost: int = 0, nll: float = 1.0, reason: str = "fixed") -> ArmResult:
    right = [mark and index >= lost for index, mark in enumerate(RIGHT)]
    return ArmResult(
        arm=Arm(name, 512, "fixed", 2),
        outputs=[[index, int(mark)] for index, mark in enumerate(right)],
        right=right,
        score_by_kind={"sums": 0.6},
        window_nll=[1000.0 * nll, 2000.0 * nll],
        nll_tokens=1000,
        chunks_by_reason={reason: 40},
        chunk_sizes={512: 10, 384: 30},
        given=[],
        chunking=None,
        seconds=1.0,
    )


def good_results() -> list[ArmResult]:
    return [
        result("fixed"),
        result("fixed again"),
        result("model", reason="model"),
        result("same boundaries", reason="model"),
        result("fixed 384", lost=2, nll=1.001),
        result("fixed 256"),
        result("planted error", lost=60, nll=1.02),
    ]


def failed(results: list[ArmResult]) -> list[str]:
    return [verdict.check for verdict in judge(results) if not verdict.passed]


def with_arm(changed: ArmResult) -> list[ArmResult]:
    return [changed if r.arm.name == changed.arm.name else r for r in good_results()]


def test_a_good_run_passes_every_check() -> None:
    assert failed(good_results()) == []


def test_an_error_that_nobody_notices_is_a_failure() -> None:
    assert failed(with_arm(result("planted error"))) == ["the planted error is found out"]


def test_likelihood_alone_finds_an_error_out_and_so_does_the_score() -> None:
    assert failed(with_arm(result("planted error", nll=1.006))) == []
    assert failed(with_arm(result("planted error", lost=60))) == []
    assert failed(with_arm(result("model", nll=1.006, reason="model")))
    assert failed(with_arm(result("model", lost=60, reason="model")))


def test_one_different_token_is_not_identical() -> None:
    other = result("fixed again")
    changed = replace(other, outputs=[[9, 9], *other.outputs[1:]])
    assert failed(with_arm(changed)) == ["fixed again is identical to fixed"]
    nearly = replace(other, window_nll=[1000.0, 2000.0001])
    assert failed(with_arm(nearly)) == ["fixed again is identical to fixed"]


def test_chunks_that_the_model_did_not_size_fail() -> None:
    assert "chunks were sized by the model" in failed(with_arm(result("model")))
    one_size = replace(result("model", reason="model"), chunk_sizes={512: 40})
    assert "chunks were sized by the model" in failed(with_arm(one_size))


def test_items_that_are_too_easy_prove_nothing() -> None:
    easy = replace(result("fixed"), right=[True] * ITEMS)
    assert "the items tell right from wrong" in failed(with_arm(easy))


def test_the_table_names_every_arm_and_every_failure() -> None:
    results = with_arm(result("planted error"))
    text = markdown(results, judge(results), "heading")
    for one in results:
        assert f"| {one.arm.name} |" in text
    assert "- FAILED: the planted error is found out" in text
