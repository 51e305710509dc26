"""`bisect-env run` as a user meets it: a process of its own, with real workers and a real database."""

import contextlib
import json
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.calls import RunCommand
from tests.cli.processes import COMMAND, Command, lines, trials_below, wait_for
from tests.cluster.dask_processes import DaskProcesses
from tests.engine.studies import CRASH_FROM_SIX, QUICK, crash_from_six, pause_while, wait_while

pytestmark = pytest.mark.integration


@pytest.mark.whole_command
def test_the_last_json_event_is_the_verdict(tmp_path: Path) -> None:
    done = Command(tmp_path, CRASH_FROM_SIX, rest=QUICK).run("--json", "--workers", "2")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    verdict = events[-1]
    assert verdict["event"] == "verdict"
    assert verdict["verdict"]["first_bad"]["level"] == "6"
    assert {event["event"] for event in events} >= {"study", "locked", "started", "trial", "verdict"}


@pytest.mark.slow
def test_people_get_one_sentence_on_stdout_and_progress_on_stderr(tmp_path: Path) -> None:
    done = Command(tmp_path, CRASH_FROM_SIX).run("--workers", "2")
    assert done.returncode == 0, done.stderr
    assert "level 6" in done.stdout.splitlines()[0]
    assert "study" in done.stderr
    assert "study" not in done.stdout.splitlines()[0]


@pytest.mark.whole_command
def test_a_killed_command_goes_on_where_it_stopped(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    slow = tmp_path / "slow"
    slow.touch()
    command = Command(tmp_path, crash_from_six(pause_while(slow, 0.3)))
    process = command.start("--json", "--workers", "2")
    wanted = random.Random(seed).randint(2, 6)
    seen = []
    for event in lines(process):
        if event["event"] == "trial":
            seen.append(event["trial"])
        if len(seen) == wanted:
            break
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    process.stderr.close()
    slow.unlink()
    before = command.stored()
    assert set(seen) <= set(before)
    done = command.run("--json", "--workers", "2")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    again = [event["trial"] for event in events if event["event"] == "trial"]
    assert events[-1]["verdict"]["first_bad"]["level"] == "6"
    assert not set(again) & set(before)
    assert sorted(command.stored()) == sorted([*before, *again])


@pytest.mark.whole_command
def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.touch()
    command = Command(tmp_path, crash_from_six(pause_while(slow, 0.3)), rest=QUICK)
    process = command.start("--json", "--workers", "2")
    for event in lines(process):
        if event["event"] == "trial":
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "goes on from here" in err
    assert "Traceback" not in err
    assert "error" not in err, "the user asked for it"
    assert command.stored()
    slow.unlink()
    assert command.run("--json", "--workers", "2").returncode == 0


@pytest.mark.slow
def test_ctrl_c_during_the_checks_ends_with_the_answer(tmp_path: Path) -> None:
    command = Command(tmp_path, crash_from_six("time.sleep(0.2)"))
    process = command.start("--json", "--workers", "2", "--sure")
    assert any(event["event"] == "answered" for event in lines(process))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    verdict = json.loads(out.splitlines()[-1])
    assert verdict["event"] == "verdict"
    assert verdict["verdict"]["first_bad"]["level"] == "6"
    # Sixty-one passes were wanted.
    assert verdict["verdict"]["cleared"][0]["wanted"] > 0


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once_and_says_how_to_go_on(tmp_path: Path) -> None:
    script = "import time; time.sleep(15)"
    command = Command(tmp_path, script)
    process = command.start("--json", "--workers", "2", start_new_session=True)
    next(event for event in lines(process) if event["event"] == "started")
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT)
    assert "goes on from" in err
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_an_output_that_cannot_be_written_is_no_defect(tmp_path: Path) -> None:
    command = Command(tmp_path, "pass", rest="search: {max_trials: 1}")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "run", str(command.matrix), "--json", "--workers", "1"],
            env=command.env,
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.returncode == 6, done.stderr
    assert "cannot be written" in done.stderr


@pytest.mark.slow
def test_a_program_hears_of_every_failure(tmp_path: Path) -> None:
    command = Command(tmp_path, "pass")
    command.matrix.write_text(command.matrix.read_text().replace("axes:", "axis:"))
    done = command.run("--json")
    assert done.returncode == 2
    (event,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (event["event"], event["exit_code"]) == ("error", 2)
    assert any("axis" in problem for problem in event["problems"])


@pytest.mark.slow
def test_a_killed_worker_costs_one_void_trial(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    # No trial ends before its worker is dead: a kill between two trials would cost none.
    command = Command(tmp_path, crash_from_six(wait_while(hold)))
    (tmp_path / "dask").mkdir()
    with DaskProcesses(tmp_path / "dask", env={"BISECT_ENV_CACHE": command.env["BISECT_ENV_CACHE"]}) as dask:
        dask.scheduler()
        nannies = [dask.worker() for _ in range(2)]
        process = command.start("--json", "--scheduler", dask.address)
        wait_for(lambda: any(kill_a_worker(nanny.pid) for nanny in nannies))
        hold.unlink()
        out, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    events = [json.loads(line) for line in out.splitlines()]
    void = [event for event in events if event["event"] == "trial" and event["evidence"] == "void"]
    assert [event["outcome"] for event in void] == ["worker-lost"]
    assert events[-1]["verdict"]["first_bad"]["level"] == "6"


def kill_a_worker(pid: int) -> bool:
    """Kill a Dask worker below a nanny that runs a trial, if there is one."""
    for script in trials_below(pid):
        with contextlib.suppress(psutil.Error):  # ended since it was listed
            # The server and the supervisor are between them.
            script.parents()[2].kill()
            return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (lambda text: text.replace("axes:", "axis:"), 2, "axis"),
        (lambda text: text.replace("script.py", "missing.py"), 2, "missing.py"),
        (lambda text: text.replace("version: 1", "version: 7"), 2, "version"),
        (lambda text: text.replace("timeout: 20s", "timeout: 20s\n  gpus: 1"), 6, "GPU"),
        (lambda text: text + "\npackages: [no-such-package-of-ours==1]", 5, "no-such-package-of-ours"),
    ],
)
@pytest.mark.network
def test_what_cannot_be_run_is_said_without_a_traceback(
    tmp_path: Path, change: Any, code: int, says: str
) -> None:
    command = Command(tmp_path, "pass")
    command.matrix.write_text(change(command.matrix.read_text()))
    done = command.run("--workers", "1")
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_matrix_is_said_so(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run("run", "no-such-file.yaml")
    assert code == 2
    assert "no-such-file.yaml" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_two_commands_on_one_study_share_their_trials(tmp_path: Path) -> None:
    command = Command(tmp_path, crash_from_six("time.sleep(0.3)"))
    both = [command.start("--json", "--workers", "1") for _ in range(2)]
    for process in both:
        _, err = process.communicate(timeout=150)
        assert process.returncode == 0, err
    done = subprocess.run(
        [*COMMAND, "report", "--format", "json"],
        env=command.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    report = json.loads(done.stdout)
    assert report["verdict"]["first_bad"]["level"] == "6"
    assert report["verdict"]["trials"] == report["trials"] == len(command.stored())


def test_checks_are_left_out_or_all_made_but_not_both(run: RunCommand) -> None:
    code, _, err = run("run", "orjson>=3.8", "repro.py", "--quick", "--sure")
    assert code == 2
    assert "--quick" in err
    assert "--sure" in err
