"""What the comparison with other quantizers concludes from its figures."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.benchmarks.peer_quantizers import PEERS, restoring
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


def test_autoawq_finds_the_weights_again_that_its_search_changes_in_place() -> None:
    def search(quantizer: object, x: object, w: object, mean: object, module: nn.Module) -> float:
        kept = {name: tensor.cpu() for name, tensor in module.state_dict().items()}
        found = []
        for scale in (2.0, 3.0):
            (weight,) = module.parameters()
            weight.data.mul_(scale)
            found.append(weight.sum().item())
            module.load_state_dict(kept)
        return found[-1]

    module, original = nn.Linear(4, 4, bias=False), torch.ones(4, 4)
    module.load_state_dict({"weight": original})
    assert search(None, None, None, None, module) == 96.0, "what is to be mended: 6 times each"
    module.load_state_dict({"weight": original})
    assert restoring(search)(None, None, None, None, module) == 48.0
    assert torch.equal(module.weight, original)
    assert "state_dict" not in vars(module)


def test_every_program_is_asked_for_what_it_makes_at_both_sizes_of_group() -> None:
    wanted = list(cases(["starter"], ["awq", "gptq"], [128, 64], 2, list(PEERS)))
    made = {(case.maker, case.method, case.group_size, case.seed) for case in wanted}
    assert len(made) == len(wanted) == len({case.name for case in wanted})
    for maker, methods in ({OURS: ("awq", "gptq")} | PEERS).items():
        assert {case[1:] for case in made if case[0] == maker} == {
            (method, size, seed) for method in methods for size in (128, 64) for seed in (0, 1)
        }
