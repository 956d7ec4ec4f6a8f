"""The random part of the model test: new plans in each run, which can be replayed."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.testing import StoreContract, model


class Plans:
    """Records plans instead of playing them."""

    def __init__(self, patch: pytest.MonkeyPatch, *, fail: bool = False) -> None:
        self._patch = patch
        self._fail = fail
        self._played: list[Any] = []
        patch.setattr(model, "compare", self._note)
        patch.setattr(model, "PLANS", 5)

    def _note(self, _subject: object, _memory: object, configuration: object, plan: object) -> None:
        self._played.append((configuration, plan))
        if self._fail:
            raise KeyboardInterrupt  # Hypothesis does not shrink it

    def of(self, seed: int) -> list[Any]:
        self._patch.setattr(model, "SEED", seed)
        self._played.clear()
        StoreContract().test_new_random_calls_are_answered_as_the_specification_does("memory:")
        return list(self._played)


def test_a_seed_plays_its_plans_again_and_another_plays_others(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = Plans(monkeypatch)
    first = plans.of(1)
    assert plans.of(1) == first
    assert plans.of(2) != first


def test_a_failure_and_the_output_name_the_seed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        Plans(monkeypatch, fail=True).of(1234)
    assert any("PENSTOCK_SEED=1234" in note for note in caught.value.__notes__)
    assert "PENSTOCK_SEED=1234" in capsys.readouterr().out
