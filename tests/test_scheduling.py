"""What the workers of a run are handed, and in which order."""

from pathlib import Path

from scheduling import in_order, unit_of

MARK = "pytest.mark"  # apart from the name: this file must not look marked itself


def test_a_unit_is_a_group_or_a_module_or_one_long_test(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text("import pytest\n")
    (tmp_path / "test_long.py").write_text(f"pytestmark = {MARK}.slow\n")
    (tmp_path / "test_group.py").write_text(f'pytestmark = [{MARK}.slow, {MARK}.xdist_group("g")]\n')

    assert unit_of(tmp_path, "test_plain.py::test_a[1]") == "test_plain.py"
    assert unit_of(tmp_path, "test_long.py::test_a[x::y]") == "test_long.py::test_a[x::y]"
    assert unit_of(tmp_path, "test_group.py::test_a") == "g"


def test_groups_start_first_then_long_tests_then_the_largest_modules() -> None:
    sizes = {"small.py": 1, "large.py": 9, "a.py::test_long": 1, "few": 2, "many": 4}
    units = {unit: {f"{unit}{n}": False for n in range(size)} for unit, size in sizes.items()}

    assert in_order(units) == ["many", "few", "a.py::test_long", "large.py", "small.py"]
