"""A name reaches the one model that is meant by it, or nobody: ids, served names, aliases, basenames."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from runtime.errors import ConfigurationError, ModelNotFound, ModelRequired, UnsupportedCapability
from runtime.registry import ModelSpec
from runtime.router import Router
from runtime.work import Task
from runtime.worker import Worker


def spec(name: str, **fields: Any) -> ModelSpec:
    return ModelSpec.model_validate({"id": name, **fields})


def router(*specs: ModelSpec) -> Router:
    return Router(Worker(each) for each in specs)


def meant(routes: Router, name: str | None) -> str:
    return routes.resolve(name, Task.EMBED).spec.id


class Unable(Worker):
    """A worker of another task."""

    def can(self, task: Task) -> bool:
        return False


# -- exact names ------------------------------------------------------------------------------------------------


def test_id_served_name_and_aliases_reach_the_same_model() -> None:
    routes = router(spec("org/one", served_name="first", aliases=["uno", "x/eins"]), spec("org/two"))
    assert [meant(routes, name) for name in ("org/one", "first", "uno", "x/eins", "org/two")] == [
        *["org/one"] * 4,
        "org/two",
    ]


def test_an_exact_name_wins_over_another_models_basename() -> None:
    routes = router(spec("org/mini"), spec("other", aliases=["mini"]))
    assert meant(routes, "mini") == "other"
    assert meant(routes, "org/mini") == "org/mini"


def test_a_model_may_carry_one_name_twice() -> None:
    routes = router(spec("a", served_name="a", aliases=["a", "b", "b"]))
    assert meant(routes, "b") == "a"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (spec("a"), spec("a")),
        (spec("a", served_name="b"), spec("b")),
        (spec("a", aliases=["x"]), spec("b", aliases=["x"])),
        (spec("a"), spec("b", aliases=["a"])),
        (spec("a", served_name="same"), spec("b", served_name="same")),
    ],
)
def test_two_models_that_answer_to_one_name_are_refused_at_the_start(one: ModelSpec, other: ModelSpec) -> None:
    for pair in ((one, other), (other, one)):
        with pytest.raises(ConfigurationError, match="two models answer to the name"):
            router(*pair)


# -- basenames --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["MiniLM", "minilm", "MINILM"])
def test_a_unique_basename_is_enough_in_any_case(name: str) -> None:
    assert meant(router(spec("org/MiniLM"), spec("org/other")), name) == "org/MiniLM"


@pytest.mark.parametrize("name", ["ALIAS", "SERVED", "Id"])
def test_basenames_of_aliases_and_served_names_count_too(name: str) -> None:
    assert meant(router(spec("o/id", served_name="o/served", aliases=["o/alias"]), spec("z")), name) == "o/id"


def test_two_names_of_one_model_with_the_same_basename_are_no_ambiguity() -> None:
    assert meant(router(spec("org/mini", aliases=["mirror/mini"]), spec("org/b")), "mini") == "org/mini"


def test_a_basename_of_several_models_is_refused_with_a_list_of_those() -> None:
    routes = router(spec("one/mini"), spec("org/else"), spec("two/Mini", served_name="second"))
    with pytest.raises(ModelRequired, match=r": one/mini, second$") as refusal:
        meant(routes, "mini")
    assert refusal.value.status == 400


@pytest.mark.parametrize("name", ["other/mini", "ORG/mini", "org/MINI", "/mini", "mini/", "a/b/mini"])
def test_a_name_with_an_owner_is_never_answered_by_basename(name: str) -> None:
    with pytest.raises(ModelNotFound):
        meant(router(spec("org/mini")), name)


def test_an_id_that_is_a_folder_is_known_by_its_last_part() -> None:
    assert meant(router(spec("/data/models/mini/"), spec("b")), "mini") == "/data/models/mini/"


# -- no name, or none of ours -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [None, "", "default/not-specified"])
def test_without_a_name_the_only_model_is_meant(name: str | None) -> None:
    assert meant(router(spec("only")), name) == "only"


@pytest.mark.parametrize("name", [None, "", "default/not-specified"])
def test_without_a_name_several_models_are_listed_by_their_served_names(name: str | None) -> None:
    with pytest.raises(ModelRequired, match=r"embed: a, second$"):
        meant(router(spec("a"), spec("b", served_name="second")), name)


def test_models_of_another_task_are_not_meant_by_no_name() -> None:
    routes = Router([Unable(spec("other")), Worker(spec("embedder"))])
    assert meant(routes, None) == "embedder"


def test_a_model_that_cannot_do_the_task_is_named_as_such_and_nobody_takes_its_place() -> None:
    routes = Router([Unable(spec("other")), Worker(spec("embedder"))])
    with pytest.raises(UnsupportedCapability, match="other can"):
        meant(routes, "other")


def test_no_model_for_the_task_at_all_is_said_plainly() -> None:
    with pytest.raises(UnsupportedCapability, match="no model here can embed"):
        meant(router(), None)


def test_an_unknown_name_is_answered_with_the_served_names_and_not_echoed() -> None:
    with pytest.raises(ModelNotFound, match=r"served: a, second$") as refusal:
        meant(router(spec("a"), spec("b", served_name="second")), "private words")
    assert "private" not in refusal.value.message


# -- any set of names -------------------------------------------------------------------------------------------

parts = st.text("abAB", min_size=1, max_size=2)
names = st.builds("{}/{}".format, parts, parts) | parts


@given(st.lists(names, min_size=1, max_size=6, unique=True), names)
def test_whatever_is_asked_only_a_model_of_that_name_answers(ids: list[str], asked: str) -> None:
    routes = router(*map(spec, ids))
    assert [meant(routes, each) for each in ids] == ids
    assume(asked not in ids)
    namesakes = [each for each in ids if "/" not in asked and each.split("/")[-1].lower() == asked.lower()]
    if len(namesakes) == 1:
        assert meant(routes, asked) == namesakes[0]
    else:
        with pytest.raises(ModelRequired if namesakes else ModelNotFound):
            meant(routes, asked)
