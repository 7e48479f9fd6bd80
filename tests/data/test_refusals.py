"""Many refusals in a few lines: counted by reason, the most frequent first."""

from axial.data.refusals import Refusals
from axial.errors import DataError


def refusals(*told):
    found = Refusals()
    for where, reason in told:
        found.add(DataError(f"{where}: {reason}"), where)
    return found


def test_one_reason_is_one_whatever_its_numbers_and_names():
    found = refusals(
        ("a1", "cut at byte 60 (too short (1))"),
        ("b: c", "cut at byte 1,061.5 (odd)"),
        ("d", "is empty"),
    )
    assert [(r.count, r.where + r.why, r.others) for r in found.by_count()] == [
        (2, "a1: cut at byte 60 (too short (1))", ["b: c"]),
        (1, "d: is empty", []),
    ]
    assert found.count == 3 and found.first == "a1: cut at byte 60 (too short (1))"
    found.add(DataError("e.tar: is empty"))  # a reader that does not say of what
    assert [r.count for r in found.by_count()] == [2, 2]


def test_what_is_kept_is_bounded():
    found = Refusals()
    for i in range(5000):
        word = "".join(chr(97 + i // 26**k % 26) for k in range(3))
        found.add(DataError(f"{i}: {word}"), str(i))
        found.add(DataError(f"{i}: alike"), str(i))
    assert found.count == 10_000
    most, *others = found.by_count()
    assert (most.count, len(most.others)) == (5000, 7) and len(others) < 1000
    assert found.notes("source") == [
        "5,000 skipped, the first: 0: alike",
        *(f"1 skipped: {i}: {chr(97 + i)}aa" for i in range(4)),
        "4,996 skipped for other reasons",
    ]
    names = ", ".join(map(str, range(1, 8)))
    assert found.in_one_line() == (
        f"0: alike (also {names} and 4,992 more); 0: aaa; 1: baa; 2: caa; and 4,997 more"
    )


def test_places_are_told_from_the_source_on_and_names_are_left_as_they_are():
    found = refusals(("/home/me/cats/a; b.png", "is odd; mend it, as /home/me/cats/c.png is"))
    assert found.notes("/home/me/cats") == ["1 skipped: a; b.png: is odd; mend it, as c.png is"]
    assert (
        found.in_one_line() == "/home/me/cats/a; b.png: is odd, mend it, as /home/me/cats/c.png is"
    )
    alone = refusals(("/home/me/cats.npy", "is odd"))
    assert alone.notes("/home/me/cats.npy") == ["1 skipped: cats.npy: is odd"]
    for source, where, told in (
        (".", "0.png", "0.png"),
        ("in/", "in/main/0.png", "main/0.png"),
        ("in", "in/in/0.png", "in/0.png"),
        ("a.tar", "a.tar/b/0.png", "b/0.png"),
        ("../in", "../in/0.png", "0.png"),
        ("in", "main/in.in/0.png", "main/in.in/0.png"),
        ("in", "in/a-in/0.png", "a-in/0.png"),
    ):
        assert refusals((where, "is odd.")).notes(source) == [f"1 skipped: {told}: is odd."]


def test_a_reason_without_end_is_cut():
    found = refusals(("a", "x" * 10_000))
    assert len(found.notes("s")[0]) < 1000
