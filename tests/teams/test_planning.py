"""Plans out of what models write."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.domain.teams import MAX_SUBTASKS, Subtask
from milepost.engine.planning import read_plan

TOOLS = frozenset({"bash", "read_file"})
PLAN = {"subtasks": [{"name": "a", "description": "Do a.", "tools": ["bash"], "depends_on": []}]}
DRAFT = {"subtasks": [{"name": "draft", "description": "x"}]}
A = Subtask(1, "a", "Do a.", ("bash",))


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(PLAN),
        json.dumps(PLAN["subtasks"]),
        json.dumps({"tasks": PLAN["subtasks"]}),
        f"<think>Maybe [1, 2] or {{}}?</think>{json.dumps(PLAN)}",
        f"<THINKING>never closed? no: {json.dumps({'subtasks': []})}</THINKING>\n{json.dumps(PLAN)}",
        f"Of course! Here is the plan:\n```json\n{json.dumps(PLAN, indent=2)}\n```\nShall I begin?",
        json.dumps({"plan": PLAN}),
        json.dumps({"plan": {"steps": PLAN["subtasks"]}}),
        json.dumps(json.dumps(PLAN)),
        f"<think>First [1, 2], then {json.dumps(DRAFT)} {json.dumps(PLAN)}",
        f'{{"note": "a plan follows"}}\n{{"more": [1, 2]}}\n{json.dumps(PLAN)}',
        f"I thought of {{this}} and [that]. {json.dumps(PLAN)} And so on.",
    ],
)
def test_a_plan_is_found_between_reasoning_fences_and_prose(text: str) -> None:
    plan = read_plan(text, "the goal", TOOLS)
    assert plan.subtasks == (A,) and plan.notes == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I would simply do it.",
        '{"subtasks": []}',
        '{"subtasks": "all"}',
        "[" * 5000,
        '{"a": 1} [1, 2]',
        "<think>hm",
        '"{\\"plan\\": {}}"',
    ],
)
def test_an_answer_without_a_plan_is_one_subtask(text: str) -> None:
    plan = read_plan(text, "the goal", TOOLS)
    assert [(each.description, each.tools, each.depends_on) for each in plan.subtasks] == [("the goal", (), ())]
    assert len(plan.notes) == 1


def test_too_many_subtasks_are_one() -> None:
    many = [{"name": str(n), "description": "x"} for n in range(MAX_SUBTASKS + 1)]
    plan = read_plan(json.dumps(many), "the goal", TOOLS)
    assert len(plan.subtasks) == 1 and f"over {MAX_SUBTASKS}" in plan.notes[0]


def test_dependencies_are_names_or_numbers_and_circles_are_broken() -> None:
    text = json.dumps(
        [
            {"name": "a", "description": "a", "depends_on": ["c", "a", "nothing"]},
            {"name": "b", "description": "b", "depends_on": [1]},
            {"name": "c", "description": "c", "depends_on": ["b", "b"]},
        ]
    )
    plan = read_plan(text, "goal", TOOLS)
    assert [(each.name, each.depends_on) for each in plan.subtasks] == [("a", (3,)), ("b", (1,)), ("c", ())]
    assert plan.notes == (
        "'a' depends on what is not in the plan: nothing.",
        "'c' and 'b' depend on one another; 'c' does not wait.",
    )


def test_equal_names_are_told_apart() -> None:
    plan = read_plan(json.dumps([{"name": "a", "description": "1"}, {"name": "a", "description": "2"}]), "g", TOOLS)
    assert [each.name for each in plan.subtasks] == ["a", "a (2)"]


NAMES = st.sampled_from(["a", "b", "c", "d", "", "1", "2"])
ITEMS = st.fixed_dictionaries(
    {},
    optional={
        "name": NAMES | st.integers(),
        "description": st.text(max_size=20) | st.none(),
        "tools": st.lists(st.sampled_from(["bash", "fly", ""])) | st.text(max_size=3),
        "depends_on": st.lists(NAMES | st.integers(0, 6) | st.booleans()) | st.none(),
    },
)


@given(st.lists(ITEMS, max_size=8), st.text(max_size=40))
def test_every_plan_can_be_carried_out(items: list[object], prose: str) -> None:
    plan = read_plan(prose + json.dumps({"subtasks": items}) + prose, "goal", TOOLS)
    assert [each.number for each in plan.subtasks] == list(range(1, len(plan.subtasks) + 1))
    assert len({each.name for each in plan.subtasks}) == len(plan.subtasks)
    done: set[int] = set()
    while len(done) < len(plan.subtasks):
        ready = {each.number for each in plan.subtasks if set(each.depends_on) <= done} - done
        assert ready, "something waits for itself"
        done |= ready
    for each in plan.subtasks:
        assert set(each.tools) <= TOOLS and each.description


def test_a_draft_in_reasoning_whose_opening_tag_is_missing_is_not_the_plan() -> None:
    draft, final = (json.dumps({"subtasks": [{"name": name, "description": "d"}]}) for name in ("draft", "final"))
    made = read_plan(f"Perhaps {draft}, no.</think>\n{final}", "goal", frozenset())
    assert [subtask.name for subtask in made.subtasks] == ["final"]
