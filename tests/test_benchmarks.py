from dataclasses import replace

import pytest
from conftest import load_script


@pytest.fixture(scope="module")
def attention_cost():
    return load_script("benchmarks/attention_cost.py")


def test_the_attention_benchmark_measures_time_and_memory(attention_cost, capfd):
    setting = replace(attention_cost.CPU, positions=1 << 11)
    sides = (16, 32)
    found = {
        kind: [attention_cost.measure(setting, (side, side), kind, repeats=1) for side in sides]
        for kind in attention_cost.KINDS
    }

    def growth(kind, measure):
        small, large = (row[measure] for row in found[kind])
        return large / small

    for rows in found.values():
        assert all(row.keys() == attention_cost.MEASURES.keys() for row in rows)
        assert all(value > 0 for row in rows for value in row.values())
    # Four times the positions: the plain backend keeps N ** 2 weights, or N * side.
    assert growth("full", "attention, bytes, plain") == pytest.approx(16, rel=0.15)
    assert 4 <= growth("axial", "attention, bytes, plain") < 8
    assert growth("axial", "attention, bytes, fused") == pytest.approx(4, rel=0.15)


def test_exponents_are_the_slopes_of_powers(attention_cost):
    sizes = [256, 1024, 4096]
    assert attention_cost.exponent(sizes, [3.0 * n**1.5 for n in sizes]) == pytest.approx(1.5)
    assert attention_cost.exponent(sizes, [7.0] * 3) == pytest.approx(0.0)


def test_the_attention_benchmark_reports_and_draws(attention_cost, tmp_path, capsys):
    results = {
        axes: {
            kind: {
                side: dict.fromkeys(attention_cost.MEASURES, float(side**axes) ** power)
                for side in sides
            }
            for kind, power in (("axial", 1 + 1 / axes), ("full", 2.0))
        }
        for axes, sides in attention_cost.SIDES.items()
    }
    attention_cost.report(results)
    out = capsys.readouterr().out
    assert "1.50  2.00  0.50 (paper: 0.50)" in out and "1.33  2.00  0.67 (paper: 0.67)" in out
    attention_cost.draw_picture(results, tmp_path / "picture.png", "title")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
