"""Plans as text: they parse back, whatever they hold, and say what they cannot read."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whaleish.mesh import Axis, Mesh
from whaleish.planner import Choice, Plan
from whaleish.planner.plan import Pipelining
from whaleish.sbp import PMAX, PMIN, B, P, S

sbps = st.one_of(st.sampled_from([B, P, PMAX, PMIN]), st.builds(S, st.integers(0, 5), st.integers(1, 9)))
names = st.text(st.characters(codec="utf-8", categories=["L", "N"], include_characters="/_-.:"), min_size=1, max_size=9)


MODES = ["gpipe", "1f1b", "interleaved(2)", "zb-h1", "F0 F1 B0 B1\nF0 B0 F1 B1", "F0.0 F0.1\r\nB0.1 B0.0", "it's"]


@st.composite
def pipelinings(draw: st.DrawFn, mesh: Mesh, ops: int) -> Pipelining:
    """Stages of different sizes, some of them without ops."""
    times = tuple(axis for axis in mesh.axes if axis.time)
    meshes = []
    for number in range(draw(st.integers(1, 4))):
        size = draw(st.integers(1, 3))
        devices = draw(st.permutations(range(10 * number, 10 * number + 2 * size, 2)))
        meshes.append(Mesh((*times, Axis("inside", size)), tuple(devices)))
    stage_of = draw(st.lists(st.integers(0, len(meshes) - 1), min_size=ops, max_size=ops))
    schedule = draw(st.just("") | st.sampled_from(MODES) | st.text(min_size=1))
    return Pipelining(tuple(meshes), tuple(stage_of), schedule, bool(schedule) and draw(st.booleans()))


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
    mesh = Mesh(tuple(axes), devices)
    choices = tuple(draw(st.lists(st.builds(Choice, several, several, expanding), max_size=12)))
    return Plan(
        mesh=mesh,
        graph=draw(st.text("0123456789abcdef", min_size=1, max_size=12)),
        inputs=draw(several),
        outputs=draw(several),
        variables=tuple(draw(st.lists(st.tuples(names, layouts), max_size=4))),
        choices=choices,
        pipelining=draw(st.none() | pipelinings(mesh, len(choices))),
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


STAGED = replace(
    PLAN,
    pipelining=Pipelining(
        (
            Mesh((Axis("micro", 2, None, True), Axis("d", 2)), (0, 1)),
            Mesh((Axis("micro", 2, None, True), Axis("d", 1)), (2,)),
        ),
        (0, 0, 1, 0),
        "F0 F1 B0 B1\nF0 B0 F1 B1",
        True,
    ),
)
STAGED_TEXT = TEXT.replace(
    "outputs B\n",
    "outputs B\n"
    "stage micro~2 x d:2 on 0-1 : 0-1,3\n"
    "stage micro~2 x d:1 on 2 : 2\n"
    r"schedule 'F0 F1 B0 B1\nF0 B0 F1 B1' recompute" + "\n",
)


def test_the_text_of_stages() -> None:
    assert str(STAGED) == STAGED_TEXT
    assert Plan.parse(STAGED_TEXT) == STAGED


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("on 2 : 2", "on 2 : 1-2", "for 4 ops, and its stages do not have each of them once"),
        ("stage micro~2 x d:1 on 2 : 2\n", "", "for 4 ops, and its stages do not have each of them once"),
        ("on 2 : 2", "on 2", "line 7 of the plan"),
        ("B1' recompute", "B1 recompute", "line 8 of the plan.* is not a text in quotes"),
    ],
)
def test_text_of_stages_that_cannot_be_read(old: str, new: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Plan.parse(STAGED_TEXT.replace(old, new))


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
