"""Plans as text: they parse back, whatever they hold, and say what they cannot read."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whaleish.mesh import Axis, Mesh
from whaleish.planner import Choice, Plan
from whaleish.sbp import PMAX, PMIN, B, P, S

sbps = st.one_of(st.sampled_from([B, P, PMAX, PMIN]), st.builds(S, st.integers(0, 5), st.integers(1, 9)))
names = st.text(st.characters(codec="utf-8", categories=["L", "N"], include_characters="/_-.:"), min_size=1, max_size=9)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    axes = []
    for number, size in enumerate(sizes):
        shares = draw(st.none() | st.lists(st.integers(1, 4), min_size=size, max_size=size))
        axes.append(Axis(f"axis{number}", size, tuple(shares) if shares else None, draw(st.booleans())))
    count = len(Mesh(tuple(axes)).devices)
    devices = tuple(draw(st.permutations(range(0, 2 * count, 2))))
    layouts = st.tuples(*[sbps] * len(axes))
    expanding = st.sets(st.integers(0, len(axes) - 1)).map(lambda axes: tuple(sorted(axes)))
    several = st.lists(layouts, max_size=3).map(tuple)
    return Plan(
        mesh=Mesh(tuple(axes), devices),
        graph=draw(st.text("0123456789abcdef", min_size=1, max_size=12)),
        inputs=draw(several),
        outputs=draw(several),
        variables=tuple(draw(st.lists(st.tuples(names, layouts), max_size=4))),
        choices=tuple(draw(st.lists(st.builds(Choice, several, several, expanding), max_size=12))),
    )


@settings(deadline=None)
@given(plans())
def test_text_parses_back(plan: Plan) -> None:
    again = Plan.parse(str(plan))
    assert again == plan
    assert hash(again) == hash(plan)
    assert str(again) == str(plan)
    assert plan.diff(again) == []


PLAN = Plan(
    mesh=Mesh((Axis("d", 2),)),
    graph="abc",
    inputs=((B,),),
    outputs=((B,),),
    variables=(("a b/kernel", (S(0),)), ("bias", (B,))),
    choices=(Choice((), ((B,),)), Choice(((B,),), ((S(0),),)), Choice((), ((B,),)), Choice(((S(0),),), ((P,),), (0,))),
)
TEXT = """\
whaleish plan 1
mesh d:2 on 0-1
graph abc of 4 ops
inputs B
outputs B
variable a b/kernel S(0)
variable bias B
ops . -> B : 0,2
ops B -> S(0) : 1
ops S(0) => P : 3
"""


def test_the_text() -> None:
    assert str(PLAN) == TEXT
    assert Plan.parse(TEXT) == PLAN
    assert Plan.parse("\n" + TEXT + "\n\n") == PLAN


def test_saved_and_loaded(tmp_path) -> None:
    PLAN.save(tmp_path / "step.plan")
    assert Plan.load(tmp_path / "step.plan") == PLAN


def test_diff_has_the_lines_that_differ() -> None:
    other = replace(PLAN, variables=(("a b/kernel", (S(1),)), ("bias", (B,))))
    assert PLAN.diff(other) == ["- variable a b/kernel S(0)", "+ variable a b/kernel S(1)"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("whaleish plan 1", "whaleish plan 9", "this is not a plan: it begins with 'whaleish plan 9'"),
        (TEXT, "", "this is not a plan: it begins with ''"),
        ("S(0) => P", "S(0) => Q", r"line 10 of the plan, 'ops S\(0\) => Q : 3': 'Q' is not a layout of one axis"),
        ("kernel S(0)", "kernel S(0", r"line 6 of the plan"),
        ("ops S(0) => P : 3\n", "", "for 4 ops but gives layouts for 3: it was cut short"),
        ("ops B -> S(0) : 1", "ops B -> S(0) : one", "line 9 of the plan"),
        ("mesh d:2 on 0-1\n", "", "has no line that begins with 'mesh'"),
        ("graph abc of 4 ops\n", "", "has no line that begins with 'graph'"),
        ("mesh d:2", "mesh d:x", "line 2 of the plan"),
        ("of 4 ops", "of four ops", "line 3 of the plan"),
        ("outputs B", "outputs Q", "line 5 of the plan"),
    ],
)
def test_text_that_is_no_plan(old: str, new: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Plan.parse(TEXT.replace(old, new))
