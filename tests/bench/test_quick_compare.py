"""The guard against slow-downs, on made figures: ratios, bands, verdicts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import quick
from bench.quick_compare import (
    BUSY_PERCENT,
    LEAST_BANDS,
    RATIOS,
    Line,
    Measured,
    Reference,
    Sample,
    compare,
    conclusion,
    fold,
    new_baseline,
)

REFERENCE = Reference(echo_rate=5000, echo_cpu_us=300, stream_ms=0.2, flush_ms=0.3)
WORKLOADS = ("W1", "W2", "W3", "W3 send_batch", "W4", "W5", "W6")


def samples(rate: float = 10_000, p50_ms: float = 1.0, cpu_us: float = 30) -> dict[str, Sample]:
    return {name: Sample(rate, p50_ms, cpu_us) for name in WORKLOADS}


def beside(found: dict[str, Sample], reference: Reference = REFERENCE) -> dict[str, Measured]:
    return {name: Measured(sample, reference) for name, sample in found.items()}


def rounds_of(*each: dict[str, Sample]) -> dict[str, list[float]]:
    return fold([beside(found) for found in each])


def lines_after(now: dict[str, Sample]) -> dict[str, Line]:
    """Compare one round with a baseline of equal ones."""
    baseline = new_baseline(rounds_of(samples(), samples()), {})
    return {line.name: line for line in compare(rounds_of(now), baseline)}


def test_ratios_set_every_figure_beside_the_reference_of_its_moment() -> None:
    slow = Reference(echo_rate=3000, echo_cpu_us=500, stream_ms=0.4, flush_ms=0.6)
    found = fold([beside(samples(), REFERENCE.mean(slow)), beside(samples())])
    assert set(found) == {ratio.name for ratio in RATIOS}
    assert found["W1 p50 / (echo stream + flush p50)"] == pytest.approx([1.0 / 0.75, 1.0 / 0.5])
    assert found["W3 rate / echo rate"] == pytest.approx([10_000 / 4000, 10_000 / 5000])
    assert found["W6 CPU per message / per echo call"] == pytest.approx([30 / 400, 30 / 300])


def test_a_machine_that_is_slower_as_a_whole_changes_no_ratio() -> None:
    now = fold([beside(samples(rate=5000, p50_ms=2.0, cpu_us=60), Reference(2500, 600, 0.4, 0.6))])
    lines = compare(now, new_baseline(rounds_of(samples(), samples()), {}))
    assert {line.verdict for line in lines} == {"same"}
    assert all(line.slower_percent == pytest.approx(0, abs=0.1) for line in lines)


def test_what_got_slower_is_named_with_its_percentage_whatever_the_direction() -> None:
    lines = lines_after(samples(rate=5000, p50_ms=1.5, cpu_us=36))
    assert lines["W3 rate / echo rate"].verdict == "slower than the baseline by 100 %"
    assert lines["W1 p50 / (echo stream + flush p50)"].verdict == "slower than the baseline by 50 %"
    assert lines["W2 CPU per message / per echo call"].verdict == "slower than the baseline by 20 %"
    text = conclusion(list(lines.values()))
    assert text.startswith(f"SLOWER: {len(RATIOS)} of {len(RATIOS)} ratios")
    assert "W3 rate / echo rate: slower than the baseline by 100 %" in text


def test_within_the_band_nothing_is_called_slower() -> None:
    lines = lines_after(samples(rate=8000, p50_ms=1.3, cpu_us=34))
    assert {line.verdict for line in lines.values()} == {"same"}
    assert lines["W3 rate / echo rate"].slower_percent == pytest.approx(25)
    assert (
        conclusion(list(lines.values()))
        == f"none of {len(RATIOS)} ratios is slower than the baseline, within the bands"
    )


def test_what_got_faster_is_told_and_is_no_failure() -> None:
    lines = lines_after(samples(rate=20_000, p50_ms=0.5, cpu_us=15))
    assert {line.verdict for line in lines.values()} == {"faster"}
    assert not any(line.slower for line in lines.values())


def test_beside_other_programs_only_cpu_time_is_judged() -> None:
    baseline = new_baseline(rounds_of(samples(), samples()), {})
    lines = compare(rounds_of(samples(rate=100, p50_ms=50.0, cpu_us=60)), baseline, BUSY_PERCENT + 1)
    assert {line.name for line in lines if line.slower} == {
        f"{name} CPU per message / per echo call" for name in ("W1", "W2", "W3", "W3 send_batch", "W4")
    }
    assert {line.verdict for line in lines if not line.slower} == {"not judged"}


def test_bands_grow_with_what_the_rounds_of_the_baseline_differ_by() -> None:
    steady = new_baseline(rounds_of(samples(), samples()), {})["ratios"]
    assert steady["W3 rate / echo rate"]["band_percent"] == LEAST_BANDS["rate"]
    assert steady["W3 CPU per message / per echo call"]["band_percent"] == LEAST_BANDS["cpu"]
    uneven = new_baseline(rounds_of(samples(cpu_us=27), samples(), samples(cpu_us=33)), {})["ratios"]
    assert uneven["W3 CPU per message / per echo call"]["band_percent"] == 20
    wild = new_baseline(rounds_of(samples(cpu_us=3), samples(), samples(cpu_us=36)), {})["ratios"]
    assert wild["W3 CPU per message / per echo call"]["band_percent"] == 2 * LEAST_BANDS["cpu"]


def test_a_baseline_survives_its_file_and_says_where_it_was_taken() -> None:
    rounds = rounds_of(samples(), samples())
    baseline = json.loads(json.dumps(new_baseline(rounds, {"machine": {"cores": 2}})))
    assert baseline["machine"] == {"cores": 2}
    assert [line.slower_percent for line in compare(rounds, baseline)] == pytest.approx(
        [0] * len(RATIOS), abs=0.1
    )


def test_without_a_baseline_or_for_a_new_ratio_there_is_no_verdict() -> None:
    rounds = rounds_of(samples())
    lines = compare(rounds, None)
    assert {line.verdict for line in lines} == {"new"}
    assert "--update" in conclusion(lines)
    baseline = new_baseline(rounds, {})
    del baseline["ratios"]["W6 rate / echo rate"]
    verdicts = {line.name: line.verdict for line in compare(rounds, baseline)}
    assert verdicts.pop("W6 rate / echo rate") == "new"
    assert set(verdicts.values()) == {"same"}


def test_a_baseline_of_another_format_is_refused_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "baseline.json"
    for text, words in (('{"format": 9}', "has format 9"), ("{", "is no JSON")):
        file.write_text(text)
        assert quick.main(["--baseline", str(file)]) == 2
        printed = capsys.readouterr().err
        assert words in printed and "--update" in printed


def test_the_exit_code_tells_of_a_slow_down_only_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now, others = samples(), 0.0
    monkeypatch.setattr(quick, "run", lambda options: ([beside(now), beside(now)], others))
    file = tmp_path / "baseline.json"
    assert quick.main(["--baseline", str(file)]) == 0
    assert "there is no baseline" in capsys.readouterr().out
    assert quick.main(["--baseline", str(file), "--update"]) == 0
    assert quick.main(["--baseline", str(file), "--strict"]) == 0
    assert "none of 13 ratios is slower" in capsys.readouterr().out
    now.update(samples(rate=1000))
    assert quick.main(["--baseline", str(file)]) == 0
    assert quick.main(["--baseline", str(file), "--strict"]) == 1
    assert "SLOWER: 5 of 13" in capsys.readouterr().out
    others = 50.0
    assert quick.main(["--baseline", str(file), "--strict"]) == 0
    printed = capsys.readouterr().out
    assert "Other programs used 50 % of the cores" in printed
    assert "none of 5 ratios is slower than the baseline, within the bands; 8 were not judged" in printed


def test_the_committed_baseline_knows_every_ratio() -> None:
    baseline = quick.read_baseline(quick.BASELINE)
    assert baseline is not None
    assert set(baseline["ratios"]) == {ratio.name for ratio in RATIOS}
    assert baseline["machine"]["cores"] and baseline["versions"]["python"]
