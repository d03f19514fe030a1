"""Keys of a server's clients, and their limits."""

import stat

import pytest

pytest.importorskip("fastapi")

from transformer_jax.errors import UserError
from transformer_jax.extras.serving.errors import ServiceError
from transformer_jax.extras.serving.keys import Keys, add_key


def test_keys_are_kept_as_digests_in_a_file_of_the_owner(tmp_path):
    path = tmp_path / "keys.txt"
    first = add_key(path, "one")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("# comment\n\n  # another\n" + path.read_text().rstrip("\n"))
    second = add_key(path, "two")
    keys = Keys.read(path)
    assert (keys.client(first), keys.client(second)) == ("one", "two")
    assert first not in path.read_text()
    for secret, status in (("", 401), ("tj_wrong", 403), (first[:-1], 403), ("\ud800", 403)):
        with pytest.raises(ServiceError) as error:
            keys.client(secret)
        assert error.value.status == status
    with pytest.raises(UserError, match="a key for one already"):
        add_key(path, "one")
    for name in ("", "a b", "#x", "x" * 65, "a\nb"):
        with pytest.raises(UserError, match="the name of a key"):
            add_key(path, name)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "keys has no key"),
        (["# only"], "keys has no key"),
        (["one"], "keys:1: .*1 words"),
        (["one abc"], "keys:1: .*64 hexadecimal"),
        ([f"one {'0' * 64} many"], "keys:1: .*many is not a number"),
        ([f"one {'0' * 64} 0"], "keys:1: .*0 is not a number"),
        (["", f"one {'0' * 64}", f"one {'1' * 64}"], "keys:3: the name one is there twice"),
    ],
)
def test_files_of_keys_that_are_wrong_are_refused(lines, message):
    with pytest.raises(UserError, match=message):
        Keys(lines, "keys")


def test_keys_have_characters_a_minute_which_stay_when_they_are_read_again():
    now = 0.0
    lines = [f"one {'0' * 64} 60", f"two {'1' * 64}"]
    keys = Keys(lines, "keys", lambda: now)
    keys.charge("two", 10**9)
    keys.charge("one", 50)
    with pytest.raises(ServiceError) as error:
        keys.charge("one", 20)
    assert (error.value.status, error.value.retry_after) == (429, 11)
    keys.charge("one", -50)  # the request was refused
    keys.charge("one", 60)
    keys = Keys(lines, "keys", lambda: now).with_use_of(keys)
    with pytest.raises(ServiceError):
        keys.charge("one", 1)
    now = 30.0
    keys.charge("one", 30)
    with pytest.raises(ServiceError) as error:
        keys.charge("one", 61)
    assert error.value.status == 413
