from atom_lite.chunking.planner import ChunkDecision
from atom_lite.chunking.report import ChunkReport
from atom_lite.messages import CHUNK_SIZE_BUCKETS_TOKENS


def test_the_line_counts_by_reason_since_the_last_one() -> None:
    report = ChunkReport()
    assert report.line() is None
    for _ in range(3):
        report.count(ChunkDecision(384, "model"))
    report.count(ChunkDecision(1024, "other_prefills"))
    assert report.line() == (
        "Dynamic chunking since last report: 3 chunks sized by the model, "
        "0 by the calibration sweep, "
        "0 kept fixed because no equal-latency chunk was reachable, "
        "1 kept fixed because other prefills were present"
    )
    assert report.line() is None


def test_rarer_reasons_are_named_when_they_happened() -> None:
    report = ChunkReport()
    report.count(ChunkDecision(1024, "fixed"))
    report.count(ChunkDecision(1024, "whole_prompt"))
    line = report.line()
    assert line is not None
    assert "1 kept fixed because no model is installed" in line
    assert "1 kept fixed because the prefill must go in one forward" in line
    assert "static schedule" not in line


def test_totals_go_on_over_reports() -> None:
    report = ChunkReport()
    report.count(ChunkDecision(64, "model"))
    report.line()
    report.count(ChunkDecision(65, "model"))
    report.count(ChunkDecision(100_000, "model"))
    assert report.total_by_reason["model"] == 3
    assert report.tokens_by_reason["model"] == 64 + 65 + 100_000
    buckets = report.size_buckets("model")
    assert buckets[0] == buckets[1] == buckets[-1] == 1
    assert len(buckets) == len(CHUNK_SIZE_BUCKETS_TOKENS) + 1
