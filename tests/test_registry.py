"""The registry's sections: sizes, names, limits."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from runtime.registry import ModelSpec, RuntimeConfig, parse_bytes


@pytest.mark.parametrize(
    ("size", "count"),
    [
        ("8GiB", 8 * 2**30),
        ("8 Gi", 8 * 2**30),
        ("512MB", 512 * 10**6),
        ("512m", 512 * 10**6),
        ("1.5GiB", 3 * 2**29),
        ("2TB", 2 * 10**12),
        ("64KiB", 65_536),
        ("700000kb", 700_000_000),
        ("10000000b", 10_000_000),
        ("8589934592", 2**33),
        (2**34, 2**34),
        (" 1gib ", 2**30),
    ],
)
def test_sizes_are_bytes(size: str | int, count: int) -> None:
    assert parse_bytes(size) == count


@pytest.mark.parametrize("size", ["", "GiB", "-1GiB", "8 Gigs", "8GiBs", "1,5GiB", "1e9", "0x10", True, "٣GiB"])
def test_what_is_no_size_is_refused(size: str | int) -> None:
    with pytest.raises(ValueError, match="is no size"):
        parse_bytes(size)


@pytest.mark.parametrize("size", [8, "9", 0, "1048575"])
def test_a_number_without_its_unit_is_refused(size: str | int) -> None:
    with pytest.raises(ValueError, match="write its unit"):
        parse_bytes(size)


def test_the_budget_is_kept_as_written_and_read_as_bytes() -> None:
    config = RuntimeConfig(memory_budget="2GiB")
    assert (config.memory_budget, config.memory_budget_bytes) == ("2GiB", 2**31)
    assert RuntimeConfig(memory_budget=2**31).memory_budget_bytes == 2**31
    assert RuntimeConfig().memory_budget_bytes is None


def test_a_budget_that_is_no_size_is_refused_when_it_is_read() -> None:
    with pytest.raises(ValidationError, match="is no size"):
        RuntimeConfig(memory_budget="lots")


def test_a_plain_string_is_a_model_of_that_id() -> None:
    config = RuntimeConfig.model_validate({"models": ["a/b", {"id": "c", "source": "d/e"}]})
    assert [(spec.id, spec.location) for spec in config.models] == [("a/b", "a/b"), ("c", "d/e")]


@pytest.mark.parametrize(
    "others",
    [
        {"id": "a/b"},
        {"id": "c", "served_name": "a/b"},
        {"id": "c", "aliases": ["a/b"]},
        {"id": "served"},
        {"id": "c", "served_name": "alias"},
        {"id": "c", "aliases": ["served"]},
    ],
)
def test_two_models_may_not_share_a_name(others: dict[str, object]) -> None:
    first = {"id": "a/b", "served_name": "served", "aliases": ["alias"]}
    with pytest.raises(ValidationError, match=r"models\[0\] and models\[1\] share the name"):
        RuntimeConfig.model_validate({"models": [first, others]})


def test_one_spec_twice_is_two_models_of_one_name() -> None:
    spec = ModelSpec(id="a")
    with pytest.raises(ValidationError, match="share the name 'a'"):
        RuntimeConfig(models=(spec, spec))


def test_a_model_may_repeat_its_own_names() -> None:
    config = RuntimeConfig.model_validate({"models": [{"id": "a", "served_name": "a", "aliases": ["a", "a"]}]})
    assert config.models[0].names == {"a"}


def test_a_model_is_found_by_every_exact_name() -> None:
    config = RuntimeConfig.model_validate(
        {"models": [{"id": "owner/first", "served_name": "one", "aliases": ["eins"]}, "owner/second"]}
    )
    assert {name: getattr(config.find(name), "id", None) for name in ("owner/first", "one", "eins", "two")} == {
        "owner/first": "owner/first",
        "one": "owner/first",
        "eins": "owner/first",
        "two": None,
    }


def test_the_last_part_of_an_id_will_do_where_only_one_model_has_it() -> None:
    config = RuntimeConfig.model_validate({"models": ["one/Small", "two/Base", "three/base", "/models/Folder/"]})
    found = {name: config.find(name) for name in ("SMALL", "base", "folder", "other/small")}
    assert {name: spec and spec.id for name, spec in found.items()} == {
        "SMALL": "one/Small",
        "base": None,
        "folder": "/models/Folder/",
        "other/small": None,
    }


def test_an_exact_name_wins_over_another_models_last_part() -> None:
    config = RuntimeConfig.model_validate({"models": ["owner/base", {"id": "other", "aliases": ["base"]}]})
    found = config.find("base")
    assert found is not None
    assert found.id == "other"


@pytest.mark.parametrize("limit", [float("inf"), float("nan"), 0, -1])
def test_a_limit_is_a_positive_finite_number(limit: float) -> None:
    with pytest.raises(ValidationError):
        ModelSpec(id="a", slo_ms=limit)
    with pytest.raises(ValidationError):
        RuntimeConfig(max_queue_ms=limit)


def test_values_never_change() -> None:
    with pytest.raises(ValidationError):
        RuntimeConfig().__setattr__("device", "cpu")


def test_a_backend_is_torch_and_nothing_is_quantized_unless_asked_for() -> None:
    assert (ModelSpec(id="a").backend, ModelSpec(id="a").quantize) == ("torch", "none")
    spec = ModelSpec(id="a", backend="openvino", quantize="int8")
    assert RuntimeConfig(models=(spec,), device="cpu").models[0] == spec


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"quantize": "int8"}, "quantize: int8 needs backend: openvino"),
        ({"backend": "openvino", "dtype": "bfloat16"}, "computes in float32, or int8 .* not in bfloat16"),
        ({"backend": "openvino", "execution": "packed"}, "runs padded buckets: leave execution: packed out"),
    ],
)
def test_a_backend_that_does_not_fit_is_refused_in_a_sentence(keys: dict[str, str], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ModelSpec.model_validate({"id": "a", **keys})


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps"])
def test_openvino_on_another_device_than_the_cpu_is_refused(device: str) -> None:
    with pytest.raises(
        ValidationError, match=rf"models\[1\]: backend: openvino runs on the CPU, and device is {device}"
    ):
        RuntimeConfig.model_validate({"device": device, "models": ["a", {"id": "b", "backend": "openvino"}]})
