"""Options of the test suite."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-cases", action="store_true", help="run full products of cases in place of a sample")


@pytest.fixture
def all_cases(request: pytest.FixtureRequest) -> bool:
    """Whether to run full products of cases."""
    return bool(request.config.getoption("--all-cases"))
