from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config.settings import Cloud
from penstock.model.errors import ConfigError, ResourceUnknown
from penstock.objects.stores import Stores


@pytest.mark.feature("F35")
async def test_every_configuration_has_one_client_that_is_kept(tmp_path: Path) -> None:
    other = Cloud(root=str(tmp_path / "other"))
    stores = Stores(Cloud(), {"one": other, "two": Cloud(root=str(tmp_path / "other"))}, tmp_path)
    assert stores.get("") is stores.get("")
    assert stores.get("one") is stores.get("two") is not stores.get("")
    await stores.get("").put("k", [b"own"])
    await stores.get("one").put("k", [b"other"])
    assert (tmp_path / "objects" / "k").read_bytes() == b"own"
    assert (tmp_path / "other" / "k").read_bytes() == b"other"
    await stores.close()


async def test_an_unknown_name_is_told(tmp_path: Path) -> None:
    stores = Stores(Cloud(), {}, tmp_path)
    with pytest.raises(ResourceUnknown, match="object store archive does not exist"):
        stores.get("archive")
    await stores.close()


async def test_a_store_is_made_when_it_is_needed(tmp_path: Path) -> None:
    stores = Stores(Cloud(), {"bad": Cloud(backend="s3")}, tmp_path)
    stores.get("")
    with pytest.raises(ConfigError):
        stores.get("bad")
    await stores.close()
