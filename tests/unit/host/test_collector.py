import gc
from collections.abc import Iterator

import pytest

from penstock.host.collector import THRESHOLDS, calm_collector


@pytest.fixture
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.usefixtures("as_before")
def test_what_was_loaded_is_left_out_and_collections_are_rare() -> None:
    calm_collector()
    assert gc.get_threshold() == THRESHOLDS
    assert gc.get_freeze_count() > 0
    assert gc.isenabled()
