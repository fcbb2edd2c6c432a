"""Where the functions of a composed script are created."""

from __future__ import annotations

from lua.compose.nesting import nest


def function(name: str, body: str, parameters: str = "") -> str:
    return f"local function {name}({parameters})\n{body}\nend"


def nested(rest: str, **bodies: str) -> dict[str, str]:
    return nest({name: function(name, body) for name, body in bodies.items()}, rest)[0]


def test_a_function_that_one_other_needs_is_created_when_that_one_is_called() -> None:
    top = nested("outer()", inner="return 1", outer="return inner()")
    assert top == {"outer": function("outer", "local function inner()\nreturn 1\nend\nreturn inner()")}


def test_a_function_that_two_need_is_put_where_both_are() -> None:
    top = nested(
        "all()", deep="return 1", left="return deep()", right="return deep()", all="return left()+right()"
    )
    assert [*top] == ["all"]
    assert [line for line in top["all"].splitlines() if "function" in line] == [
        "local function all()",
        "local function deep()",
        "local function left()",
        "local function right()",
    ]


def test_a_function_that_the_script_itself_uses_stays_at_the_top() -> None:
    assert [*nested("outer() inner()", inner="return 1", outer="return inner()")] == ["inner", "outer"]


def test_nothing_is_put_into_a_function_that_is_called_from_a_loop() -> None:
    bodies = {"inner": "return 1", "middle": "return inner()", "outer": "if x then return middle() end"}
    assert [*nested("for i=1,9 do outer() end", **bodies)] == ["inner", "middle", "outer"]
    assert [*nested("while outer() do x=1 end", **bodies)] == ["inner", "middle", "outer"]
    assert [*nested("for i=1,9 do x=1 end\nouter()", **bodies)] == ["outer"]


def test_a_function_that_one_branch_needs_is_created_in_it() -> None:
    functions = {
        "inner": function("inner", "return 1"),
        "outer": function("outer", "if x then\nreturn 2\nelseif y then\nreturn inner()+inner()\nend"),
    }
    top, own = nest(functions, "local a=1\nif a\nthen\nif b(a) then\nreturn outer()\nend\na=outer()\nend")
    assert top == {}
    assert own.splitlines()[:5] == ["local a=1", "if a", "then", "local function outer()", "if x then"]
    lines = own.splitlines()
    assert lines[lines.index("elseif y then") + 1] == "local function inner()"


def test_a_function_that_a_condition_or_two_branches_need_is_created_before_them() -> None:
    condition, branches = "if one() then\nx=1\nend", "if x then\none()\nelse\none()\nend"
    for own in (condition, branches, branches.replace("else", "elseif y then"), "while x do\none()\nend"):
        assert nest({"one": function("one", "return 1")}, own) == ({"one": function("one", "return 1")}, own)


def test_nothing_is_put_into_a_loop_in_a_branch() -> None:
    own = "if x then\nfor i=1,9 do\nif y then\none()\nend\nend\nend"
    assert nest({"one": function("one", "return 1")}, own)[1].splitlines()[:2] == [
        "if x then",
        "local function one()",
    ]


def test_what_a_function_at_the_top_needs_is_there_too() -> None:
    functions = {
        "deep": function("deep", "return 1"),
        "reader": function("reader", "return ids[1]+deep()"),
        "outer": function("outer", "return reader()+deep()", "ids"),
    }
    assert [*nest(functions, "outer({})")[0]] == ["deep", "reader", "outer"]
    assert [*nest(functions, "if x then\nouter({})\nend")[0]] == []


def test_a_name_keeps_its_meaning_where_a_parameter_has_it_too() -> None:
    functions = {
        "reader": function("reader", "return ids[1]"),
        "taker": function("taker", "return #ids", "ids"),
        "outer": function("outer", "return reader()+taker(ids)", "ids"),
    }
    top = nest(functions, "outer({})")[0]
    assert [*top] == ["reader", "outer"]
    assert top["outer"].splitlines()[1] == "local function taker(ids)"
