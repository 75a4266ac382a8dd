from penstock.config import CloudSection, Config, S3Section, all_settings, secrets
from penstock.config.setting_keys import pattern, store_name
from penstock.config.storage_settings import EtcdSection, StorageSection


def test_secrets_are_found_and_stay_out_of_repr() -> None:
    config = Config(
        storage=StorageSection(
            cloud=CloudSection(s3=S3Section(access_key="AKIA1", secret_key="hunter2"))
        )
    )
    assert secrets(config) == ["AKIA1", "hunter2"]
    assert "AKIA1" not in repr(config)
    assert "hunter2" not in repr(config)
    stored = Config(
        storage=StorageSection(stores={"a": CloudSection(s3=S3Section(secret_key="hunter4"))})
    )
    assert secrets(stored) == ["hunter4"]
    assert "hunter4" not in repr(stored)
    etcd = Config(storage=StorageSection(etcd=EtcdSection(user="penstock", password="hunter3")))
    assert secrets(etcd) == ["hunter3"]
    assert "hunter3" not in repr(etcd)


def test_a_configuration_without_secrets_has_none() -> None:
    assert secrets(Config()) == []


def test_settings_of_a_store_are_those_of_the_bucket_by_other_keys() -> None:
    config = Config(storage=StorageSection(stores={"cold": CloudSection(backend="memory")}))
    facts = all_settings(config)["storage.stores.cold.s3.region"]
    assert (facts.key, facts.default) == ("storage.stores.cold.s3.region", "")
    assert store_name(facts.key) == "cold"
    assert pattern(facts.key) == "storage.cloud.s3.region"
    assert store_name("storage.cloud.s3.region") is None
