"""The real helm, or a reason why these tests were skipped."""

import pytest
from tests.charts.rendering import find_helm


@pytest.fixture(autouse=True, scope="session")
def helm_there() -> None:
    if find_helm() is None:
        pytest.skip("there is no helm: tools/get-kube-tools puts it into .cache/tools")
