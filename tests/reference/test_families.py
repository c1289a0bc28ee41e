"""Each tiny model varies its answer, has no near ties, and computes what its configuration says."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.reference.cases import MIN_MARGIN, Case, Config
from tests.reference.families import FAMILIES, ablations
from tests.reference.huggingface import Reference, logits, reference
from tests.reference.test_cases import tensors

Known = Callable[[Case], Reference]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Known:
    folder, found = tmp_path_factory.mktemp("families"), dict[str, Reference]()

    def known(case: Case) -> Reference:
        if case.name not in found:
            found[case.name] = reference(case, folder / case.name)
        return found[case.name]

    return known


def _named(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", FAMILIES, ids=_named)
def test_the_answer_varies_and_has_no_near_ties(case: Case, known: Known) -> None:
    found = known(case)
    assert len(set(found.greedy_ids)) >= 8
    assert found.min_margin > MIN_MARGIN


@pytest.mark.parametrize("case", FAMILIES, ids=_named)
def test_no_tensor_is_constant(case: Case, known: Known) -> None:
    for name, tensor in tensors(known(case).folder).items():
        assert tensor.numel() == 1 or float(tensor.float().std()) > 0.01, name


@pytest.mark.parametrize(("case", "changes"), list(ablations()), ids=lambda part: getattr(part, "name", None))
def test_a_change_of_the_configuration_changes_the_logits(case: Case, changes: Config, known: Known) -> None:
    found = known(case)
    changed_TV = logits(found.folder, found.prompt_ids, changes)
    assert np.abs(changed_TV - found.logits_TV)[-1].max() > 0.05
