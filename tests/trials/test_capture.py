from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_env.secrets import without_values
from bisect_env.trials.head_tail import HEAD_SHARE, HeadTail
from bisect_env.trials.processes import oom_kills


@given(st.lists(st.text("abc\n").map(str.encode)), st.integers(4, 60))
def test_head_and_tail_of_any_stream(pieces: list[bytes], limit: int) -> None:
    kept = HeadTail(limit)
    for piece in pieces:
        kept.add(piece)
    whole = b"".join(pieces).decode()
    if len(whole) <= limit:
        assert kept.text() == whole
        return
    head = limit // HEAD_SHARE
    expected = whole[:head] + f"\n[… {len(whole) - limit} bytes left out …]\n" + whole[-(limit - head) :]
    assert kept.text() == expected


@pytest.mark.parametrize("line", ["{}", "{}\n", "xx{}yy", "x" * 40 + "{}" + "y" * 40 + "\r\n"])
def test_no_part_of_a_secret_is_kept_where_the_output_is_cut(line: str) -> None:
    secret = "planted-quick-wombat"
    whole = line.format(secret) * 40
    for limit in range(8, 400):
        kept = HeadTail(limit)
        kept.add(whole.encode())
        shown = without_values(kept.text(), {"MY_TOKEN": secret})
        parts = [secret[i : i + 3] for i in range(len(secret) - 2)]
        assert [part for part in parts if part in shown] == [], limit
        # A script may print such a gap itself, for example as part of a log.
        printed = without_values(f"a\n[… 7 bytes left out …]\nb\n{kept.text()}", {"MY_TOKEN": secret})
        assert [part for part in parts if part in printed] == [], limit


def test_what_a_cut_output_says_beside_its_gap_is_kept_if_there_is_no_secret() -> None:
    kept = HeadTail(8)
    kept.add(b"first line and last")
    assert without_values(kept.text(), {"MODE": "planted-5566"}) == "fi\n[… 11 bytes left out …]\nd last"


def test_a_character_cut_in_two_is_replaced() -> None:
    kept = HeadTail(4)
    kept.add("ééé".encode())
    assert kept.text().startswith("\ufffd\n[… 2 bytes left out …]\n")


def test_colours_are_left_out() -> None:
    kept = HeadTail(1000)
    kept.add(b"\x1b[1;35mValueError\x1b[0m: \x1b[38;2;1;2;3mboom\x1b[m\x1b[K [1m]\n")
    assert kept.text() == "ValueError: boom [1m]\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_memory_kills_are_read_from_the_trials_own_cgroup(tmp_path: Path) -> None:
    assert oom_kills(tmp_path) == 0
    write(tmp_path / "proc/vmstat", "nr_free_pages 1\noom_kill 9\n")
    write(tmp_path / "proc/self/cgroup", "0::/user.slice/one\n")
    assert oom_kills(tmp_path) == 9
    write(tmp_path / "sys/fs/cgroup/user.slice/one/memory.events", "oom 3\noom_kill 2\noom_group_kill 0\n")
    assert oom_kills(tmp_path) == 2


def test_memory_kills_under_the_first_version_of_cgroups(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "5:cpu:/x\n4:memory:/docker/abc\n")
    write(tmp_path / "sys/fs/cgroup/memory/docker/abc/memory.oom_control", "under_oom 0\noom_kill 4\n")
    assert oom_kills(tmp_path) == 4


@pytest.mark.parametrize("at", [0, 300, 5_000, 20_000, 39_990])
@pytest.mark.parametrize("piece", [1, 7, 1000, 100_000])
def test_a_pattern_is_found_in_what_is_not_kept(at: int, piece: int) -> None:
    lines = [f"step {n} of 40000" for n in range(40_000)]
    lines[at] = "checksum mismatch"
    text = "\n".join(lines).encode()
    kept = HeadTail(1000, [r"^checksum \w+$", "^mismatch$", "step 40000"])
    for start in range(0, len(text), piece):
        kept.add(text[start : start + piece])
    shown = kept.text()
    assert ("checksum mismatch" in shown) or kept.found == {r"^checksum \w+$"}
    assert kept.found <= {r"^checksum \w+$"}


def test_a_pattern_that_spans_two_windows_is_found() -> None:
    text = b"x\n" * 3000 + b"first line\nsecond line\n" + b"x\n" * 3000
    for piece in range(1, 40):
        kept = HeadTail(100, [r"first line\nsecond line"])
        for start in range(0, len(text), piece):
            kept.add(text[start : start + piece])
        kept.text()
        assert kept.found
