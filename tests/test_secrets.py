from __future__ import annotations

import json
import random
import time
from collections.abc import Callable

import pytest
import yaml

from bisect_env.errors import InfrastructureError, UsageError
from bisect_env.matrix.load import stored_matrix
from bisect_env.secrets import for_build, may_be_stored, public_json, without_passwords, without_values
from bisect_env.storage.shared_text import shared_matrix_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a https://me:hunter2@host/simple b", "a https://me:***@host/simple b"),
        ("https://me:hunter2@host:8443/x@y", "https://me:***@host:8443/x@y"),
        ("https://me:p@ss@host/x", "https://me:***@host/x"),
        ("https://me:pa/ss@host/x", "https://me:***@host/x"),
        ("https://:hunter2@host/x", "https://:***@host/x"),
        ("https://ann@corp.com:hunter2@host/x@y", "https://***@corp.com:***@host/x@y"),
        ("https://ann@corp.com:h@nter2@host:80/x", "https://***@corp.com:***@host:80/x"),
        ("https://ann@corp.com:hun/ter2@host/x", "https://***@corp.com:***@host/x"),
        ("postgresql://ann@corp.com:hunter2@host/x", "postgresql://ann@corp.com:***@host/x"),
        ("https://token@host:8080/x@y", "https://***@host:8080/x@y"),
        ("a-1.whl?v=1&token=hunter2 b", "a-1.whl?v=1&token=*** b"),
        ("git+ssh://git@host:group/project@v1", "git+ssh://git@host:group/project@v1"),
        ("git+https://ghp_abcdef@host/x", "git+https://***@host/x"),
        ("ssh://git@host/x", "ssh://git@host/x"),
        ("http://host:8080/a@b", "http://host:8080/a@b"),
        ("http://[::1]:8080/a@b", "http://[::1]:8080/a@b"),
        ("see http://host:80 or mail me@example", "see http://host:80 or mail me@example"),
        ("https://host/f.whl?v=1&token=hunter2#sha256=ab", "https://host/f.whl?v=1&token=***#sha256=ab"),
        ("https://host/f?X-Amz-Signature=hunter2&x=1", "https://host/f?X-Amz-Signature=***&x=1"),
        ("host=db sslpassword=hunter2 x=1", "host=db sslpassword=*** x=1"),
        ("Authorization: Bearer hunter2", "Authorization: Bearer ***"),
        ("{'Authorization': 'Basic hunter2'}", "{'Authorization': 'Basic ***'}"),
        ("no address at all: a:b@c", "no address at all: a:b@c"),
    ],
)
def test_texts(text: str, shown: str) -> None:
    assert without_passwords(text) == shown
    assert public_json({"a": [text, 1, None]}) == {"a": [shown, 1, None]}


@pytest.mark.parametrize("seed", range(5))
def test_json_stays_json_without_its_passwords(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    before = ["password=", "https://host/f?token=", "Authorization: Bearer ", "https://me:"]
    for _ in range(300):
        end = "".join(rng.choices(["\\", '"', "'", "\n", "\x01", "é", " failed", "&", "#", "@host/"], k=6))
        text = json.dumps([1, f"{rng.choice(before)}hunter2{end}"], ensure_ascii=rng.choice([True, False]))
        shown = without_passwords(text)
        first, masked = json.loads(shown)
        assert first == 1
        assert text.startswith('[1, "https://me:') or "hunter2" not in masked
        assert without_passwords(shown) == shown


def test_values_of_secret_variables_are_removed_from_output() -> None:
    given = {
        "MY_TOKEN": "planted-55667",
        "MORE_TOKEN": "planted-5566778899",
        "MODE": "planted-5566",
        "KEY": "on",
    }
    text = "sent planted-5566778899, then planted-55667: switched on, planted-5566"
    assert without_values(text, given) == "sent ***, then ***: switched on, planted-5566"
    assert without_values(text, {}) == text


KEY = "-----BEGIN PRIVATE KEY-----\nMIIabc\nplanted-5566\\ü\n-----END PRIVATE KEY-----\n"
CREDENTIALS = '{"key": "planted-5566", "user": "o\'neill"}'


@pytest.mark.parametrize("value", [KEY, CREDENTIALS], ids=["key", "credentials"])
@pytest.mark.parametrize(
    "written",
    [
        str,
        repr,
        json.dumps,
        lambda value: json.dumps(value, ensure_ascii=False),
        lambda value: str(KeyError(value)),
        lambda value: repr({"MY_KEY": value}),
        lambda value: value.strip().splitlines()[-2:][0],
    ],
)
def test_a_secret_is_removed_however_it_is_written(value: str, written: Callable[[str], str]) -> None:
    shown = without_values(f"it was {written(value)}.", {"MY_KEY": value})
    assert "planted" not in shown
    assert "***" in shown
    assert shown.startswith("it was ")
    assert shown.endswith(".")


@pytest.mark.parametrize("piece", ["://a:", "://a", "https://", "?a=", "password=", "x" * 50 + "://u:p"])
def test_a_long_line_does_not_take_for_ever(piece: str) -> None:
    began = time.monotonic()
    without_passwords("://" + piece * (300_000 // len(piece)))
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("variable", "value", "stored"),
    [
        ("OMP_NUM_THREADS", "many", True),
        ("PYTHONFAULTHANDLER", "1", True),
        ("MY_SWITCH", "on", True),
        ("MY_SEED", "12", True),
        ("MY_URL", "hunter2", False),
        ("DB_PASSWORD", "12", False),
        ("HF_TOKEN", "x", False),
        ("CUDA_API_KEY", "x", False),
        ("MYSQL_PWD", "12", False),
        ("PWD", "12", True),
        ("OLDPWD", "12", True),
    ],
)
def test_variables_are_stored_by_allow_list(variable: str, value: str, stored: bool) -> None:
    assert may_be_stored(variable, value) is stored


MATRIX = """\
version: 1  # index https://me:hunter2@host/simple
packages: ["foo @ https://me:hunter2@host/foo.whl"]
trial:
  command: python x.py --url https://me:hunter2@host
  env:
    HF_TOKEN: hunter2
    OMP_NUM_THREADS: 8
    QUOTED: "hunter2"
    FOLDED: >
      hunter2 and
      more
    LAST: hunter2 naïve ☃
  timeout: 20
"""


def test_a_matrix_that_others_read() -> None:
    shown = shared_matrix_text(MATRIX)
    assert "hunter2" not in shown
    trial = yaml.safe_load(shown)["trial"]
    assert trial["timeout"] == 20
    assert trial["env"] == {
        "HF_TOKEN": "***",
        "OMP_NUM_THREADS": 8,
        "QUOTED": "***",
        "FOLDED": "***",
        "LAST": "***",
    }
    lines = shown.splitlines()
    assert len(lines) == len(MATRIX.splitlines())
    assert lines.index("  timeout: 20") == MATRIX.splitlines().index("  timeout: 20")


@pytest.mark.parametrize("escape", ['"a\\/b"', "plain"])
def test_what_only_some_parsers_read_hides_no_secret(escape: str) -> None:
    text = f"description: {escape}\ntrial: {{env: {{HF_TOKEN: hunter2}}}}\n"
    assert "hunter2" not in shared_matrix_text(text)
    text = f"description: {escape}\naxes: {{a: {{build: {{env: {{GH_TOKEN: hunter2, CC: gcc -x}}}}}}}}\n"
    shown = shared_matrix_text(text)
    assert "hunter2" not in shown
    assert "CC: gcc -x" in shown


def test_what_cannot_be_masked_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be stored"):
        shared_matrix_text("trial: {env: {HF_TOKEN: hunter2}\n")


def test_a_matrix_without_secrets_stays_as_it_is() -> None:
    text = "version: 1\ntrial: {env: {OMP_NUM_THREADS: 8}}\n"
    assert shared_matrix_text(text) == text
    assert shared_matrix_text("a: [") == "a: ["


TOKEN = "gh" + "p_" + 36 * "a"


@pytest.mark.parametrize(
    ("env", "shown"),
    [
        (f"{{GH_PAT: {TOKEN}}}", '{GH_PAT: "***"}'),
        ("{MY_PAT: plain}", '{MY_PAT: "***"}'),
        (f"{{FETCH: 'x-{TOKEN}'}}", '{FETCH: "***"}'),
        ("{CFLAGS: -O3, PATCHES: a.diff}", "{CFLAGS: -O3, PATCHES: a.diff}"),
        (f"[FETCH={TOKEN}]", '"***"'),
        ("{FETCH: [hidden]}", '{FETCH: "***"}'),
    ],
)
def test_variables_of_builds_that_look_like_tokens_are_masked(env: str, shown: str) -> None:
    text = "axes: {{app: {{git: x, build: {{env: {}}}}}}}\n"
    assert shared_matrix_text(text.format(env)) == text.format(shown)


def test_variables_in_another_form_than_a_mapping_are_masked_as_a_whole() -> None:
    assert shared_matrix_text("trial: {env: [X=1]}") == 'trial: {env: "***"}'
    assert shared_matrix_text("trial: {env: }") == "trial: {env: }"
    assert not may_be_stored("CUDA_TOOL", TOKEN)


def test_a_masked_value_of_a_stored_matrix_replaces_no_secret_of_a_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "version: 1\nname: demo\ntrial: {command: python -V}\n"
    text += "axes: {app: {git: x, package: app, from: v1, build: {env: {MY_PAT: '***'}}}}\n"
    stored_matrix(text, (), "")
    with pytest.raises(InfrastructureError, match="BISECT_ENV_BUILD_ENV_MY_PAT"):
        for_build({"MY_PAT": "***"})
    monkeypatch.setenv("BISECT_ENV_BUILD_ENV_MY_PAT", TOKEN)
    stored_matrix(text, (), "")
    assert for_build({"MY_PAT": "***"}) == {"MY_PAT": TOKEN}
