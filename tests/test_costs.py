"""Budgets of tests: which tests and files are refused, and that the table names what exists."""

import importlib.util
from pathlib import Path

from tests import costs

ROOT = Path(__file__).parent.parent


def test_tests_and_files_above_their_budget_are_refused_by_name():
    measured = {
        "tests/test_a.py::test_one": {"cpu_s": 5.0},
        "tests/test_a.py::test_two": {"cpu_s": 7.0},
        "tests/test_b.py::test_large": {"cpu_s": 9.0},
    }
    budgets = costs.Budgets({}, {"test": 3, "file": 5}, {"tests/test_b.py::test_large": 4.5}, {})
    # At 2 s a unit these are 2.5, 3.5 and 4.5 units; the files have 6 and 4.5.
    sentences = costs.above_budget(measured, 2.0, budgets)
    assert [sentence.split(": ")[0] for sentence in sentences] == [
        "tests/test_a.py::test_two takes 3.5 units of CPU, and a test may take 3",
        "tests/test_a.py takes 6.0 units of CPU, and a file may take 5",
    ]
    assert all("or name it in tests/budgets.toml" in sentence for sentence in sentences)
    raised = budgets._replace(files={"tests/test_a.py": 6})
    assert len(costs.above_budget(measured, 2.0, raised)) == 1


def test_budgets_name_the_targets_of_ci_and_tests_that_exist():
    spec = importlib.util.spec_from_file_location("check", ROOT / ".ci" / "check.py")
    check = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check)
    budgets = costs.Budgets.read()
    assert {*budgets.targets} == {*check.TARGETS}
    for name in (*budgets.files, *budgets.tests):
        path, _, test = name.partition("::")
        assert f"def {test.partition('[')[0]}" in (ROOT / path).read_text(), name
