"""What the comparison with other quantizers concludes from its figures."""

from __future__ import annotations

import pytest

from tests.benchmarks.quantizers import OURS, ROUNDED, by_maker, cases, goals_of, paired


def test_a_difference_of_every_text_is_worse_and_one_of_chance_is_not() -> None:
    worse = paired([1.1, 2.2, 3.3], [1.0, 2.0, 3.0])
    assert worse.mean == pytest.approx(0.1) and worse.error == pytest.approx(0.0)
    assert worse.is_worse and str(worse) == "+10.00% ± 0.00%"
    chance = paired([1.2, 0.9, 1.0], [1.0, 1.0, 1.0])
    assert chance.mean > 0 and not chance.is_worse
    assert not paired([0.9, 1.8], [1.0, 2.0]).is_worse


def test_one_text_has_no_error_and_no_verdict() -> None:
    one = paired([1.01], [1.0])
    assert one.error is None and not one.is_worse and str(one) == "+1.00%"
    wanted = list(cases(["starter"], ["awq"], [128], 1, ["autoawq"]))
    found = {case.name: {"kl": 1.0, "perplexity": 1.0} for case in wanted}
    assert goals_of(by_maker(found, wanted)) == []


def test_two_programs_are_compared_on_the_texts_that_both_have_read() -> None:
    wanted = list(cases(["starter"], ["gptq"], [128], 3, ["autoawq", "gptqmodel"]))
    assert "autoawq" not in {case.maker for case in wanted}, "it makes no GPTQ"
    assert [case.maker for case in wanted if case.seed == 1] == [OURS, "gptqmodel"]
    found = {
        case.name: {"kl": case.seed + 1.0 + (case.maker == OURS), "perplexity": 1.0}
        for case in wanted
        if case.maker != "gptqmodel" or case.seed < 2
    }
    settings = by_maker(found, wanted)
    makers = settings["starter, gptq, groups of 128"]
    assert [len(makers[name]) for name in (ROUNDED, OURS, "gptqmodel")] == [1, 3, 2]
    kl, perplexity = goals_of(settings)
    assert kl.value.startswith("+75.00%") and not kl.met  # of 2/1 and 3/2
    assert perplexity.met and perplexity.value == "+0.00% ± 0.00%"
