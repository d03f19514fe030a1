"""Without torch there is nothing to compare with: `make test-peers` installs it."""

import importlib.util

import pytest

collect_ignore_glob = []
if importlib.util.find_spec("torch") is None:
    collect_ignore_glob.append("test_*.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/peers/" in item.path.as_posix():
            item.add_marker(pytest.mark.peers)


@pytest.fixture(scope="session")
def spm_models():
    """SentencePiece models of English and German number words."""
    from tests.peers import builders

    return builders.train_spm_models()
