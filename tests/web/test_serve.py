"""`bisect-env serve` as programs meet it: what is served, to whom, and that nothing can be written."""

from __future__ import annotations

import contextlib
import html
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.errors import UsageError
from bisect_env.storage.store import Store
from bisect_env.trials.records import Machine, Outcome
from bisect_env.web.pages import questions
from bisect_env.web.serve import listening
from tests.elsewhere import other_host
from tests.storage.conftest import postgres, postgres_url
from tests.storage.samples import opened_study, record, record_trial

__all__ = ["postgres", "postgres_url"]

pytestmark = [pytest.mark.slow, pytest.mark.integration]
PATIENCE = 60.0
HOSTILE = "</pre><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">\x1b[2J"


def fill(reference: str) -> tuple[str, str]:
    """A study whose trials say hostile things; its id, and that of the crash."""
    with Store.open(reference) as store:
        study = opened_study(store)
        crash = record(
            "2.0",
            Outcome.CRASH,
            detail=HOSTILE,
            signature=json.dumps([1, "crash:SIGSEGV", "body", HOSTILE]),
            stdout=HOSTILE * 3,
            stderr=f"naïve \udc80 \0 {HOSTILE}",
            stack=HOSTILE,
            host=HOSTILE,
            machine=Machine("x86_64", "NVIDIA H100", "570.1"),
        )
        record_trial(store, study.id, crash)
        record_trial(store, study.id, record("1.0"))
        verdict = VerdictDocument(status="confirmed", probability=0.97, first_bad={"orjson": "2.0"})
        store.update_study(study.id, "finished", verdict)
        return study.id, crash.trial_id


@contextlib.contextmanager
def serving(reference: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A running `serve`, with its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bisect_env", "serve", "--port", "0"],
        env={**os.environ, "BISECT_ENV_DB": reference},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, process.communicate(timeout=PATIENCE)[1]
        yield address, process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        with process:
            try:
                process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()


def get(address: str, **headers: str) -> tuple[int, str, Any]:
    try:
        answer: HTTPResponse
        with urllib.request.urlopen(
            urllib.request.Request(address, headers=headers), timeout=PATIENCE
        ) as answer:
            return answer.status, answer.read().decode("utf-8"), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode("utf-8"), error.headers


@pytest.fixture(params=["sqlite", "postgresql"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return str(tmp_path / "odd name?#%20.sqlite")


def test_views_queries_and_pages_are_served(db: str) -> None:
    study_id, trial_id = fill(db)
    with serving(db) as (address, process):
        assert address.startswith("http://127.0.0.1:")
        status, index, headers = get(f"{address}results")
        assert status == 200
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers.get("access-control-allow-origin") is None
        for name in ("v_trials", "v_combinations", "v_verdicts", "v_packages", *questions()):
            assert name in index
        found = json.loads(get(f"{address}results/v_trials.json?_shape=array&outcome=crash")[1])
        assert [trial["trial_id"] for trial in found] == [trial_id]
        asked = {
            "package": "orjson",
            "beside": "zipp",
            "version": "3.",
            "gpu_model": "H100",
            "_shape": "array",
        }
        answer = get(f"{address}results/crashing_versions.json?{urllib.parse.urlencode(asked)}")
        assert [row["version"] for row in json.loads(answer[1])] == ["2.0"]
        for name in questions():
            assert get(f"{address}results/{name}.json?study=orjson")[0] == 200, name
        status, start, _ = get(address)
        assert status == 200
        root = urllib.parse.urlsplit(address).path
        assert f'<a href="{root}-/report/{study_id}">{study_id}</a>' in start
        status, report, headers = get(f"{address}-/report/{study_id}")
        assert status == 200
        assert "2 trials (1 bad, 1 good)" in report
        assert f'<a href="../trial/{trial_id}">' in report
        assert '<a href="../../">' in report
        assert headers["content-security-policy"].startswith("default-src 'none'")
        # Text, which no browser takes for a page.
        status, trial, headers = get(f"{address}-/trial/{trial_id}")
        assert (status, "<script>" in trial, "\x1b" in trial) == (200, True, False)
        assert headers["content-type"].startswith("text/plain")
        assert headers["x-content-type-options"] == "nosniff"
        assert "there is no such trial" in get(f"{address}-/trial/gone")[1]
        for gone in ("-/report/gone", "-/trial/gone", "-/report/%3Cscript%3E"):
            status, _, headers = get(address + gone)
            assert (status, headers["content-type"].partition(";")[0]) == (404, "text/plain")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    if db.startswith("postgresql"):
        assert "this is a copy of postgresql+psycopg://owner:***@" in err
        assert "1 studies, 2 trials" in err
        assert "hunter2" not in err


def test_the_start_page_shows_the_studies_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    path = str(tmp_path / "results.sqlite")
    study_id, trial_id = fill(path)

    def links(page: str) -> set[str]:
        found = re.findall(r'<a[^>]* href="([^"]+)"', page)
        return {urllib.parse.urljoin(address, html.unescape(link)) for link in found}

    with serving(path) as (address, _):
        status, start, headers = get(address)
        assert status == 200
        assert headers["content-type"].startswith("text/html")
        assert study_id in start
        assert "orjson" in start
        assert f"{address}-/report/{study_id}" in links(start)
        trials = get(f"{address}results/v_trials")[1]
        assert f"{address}-/trial/{trial_id}" in links(trials)
        for page in (start, trials):
            here = {link for link in links(page) if link.startswith(address)}
            # Datasette links to its own site, and to nothing else elsewhere.
            assert {urllib.parse.urlsplit(link).hostname for link in links(page) - here} <= {"datasette.io"}
            assert len(here) > 5
            answers = {link: get(link)[0] for link in here}
            assert set(answers.values()) == {200}, answers


def test_another_host_finds_no_port(tmp_path: Path) -> None:
    fill(str(tmp_path / "results.sqlite"))
    with other_host() as elsewhere, serving(str(tmp_path / "results.sqlite")) as (address, _):
        port = urllib.parse.urlsplit(address).port
        assert port is not None
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE):
            pass
        assert elsewhere.reaches([port]) == set()


def test_only_this_machine_and_only_by_its_own_name(tmp_path: Path) -> None:
    path = str(tmp_path / "results.sqlite")
    fill(path)
    with serving(path) as (address, _):
        port = urllib.parse.urlsplit(address).port
        assert get(address, Host=f"localhost:{port}")[0] == 200
        # A site whose owner lets its name point here once its page is loaded.
        assert get(address, Host="evil.example")[0] == 403
        assert get(f"{address}results/v_trials.json", Host=f"evil.example:{port}")[0] == 403
        with socket.socket() as other:
            other.settimeout(5)
            assert other.connect_ex(("127.0.0.2", port)) != 0


def test_only_who_knows_the_address_is_let_in(tmp_path: Path) -> None:
    path = str(tmp_path / "results.sqlite")
    study_id, trial_id = fill(path)
    with serving(path) as (address, _):
        root, token = address.removesuffix("/").rsplit("/", 1)
        assert len(token) >= 32
        pages = ("", "results/v_trials.json", f"-/report/{study_id}", f"-/trial/{trial_id}")
        for page in pages:
            for place in ("", "wrong/", f"{token}x/", "/", f"results/../{token[:-1]}/"):
                for headers in ({}, {"Authorization": f"Bearer {token}"}, {"Cookie": f"token={token}"}):
                    status, text, _ = get(f"{root}/{place}{page}", **headers)
                    assert (status, "serve` printed" in text) == (403, True)
                    assert "orjson" not in text
            assert get(f"{root}/{page}?token={token}")[0] == 403
            status, text, headers = get(address + page)
            assert status == 200
            assert headers["referrer-policy"] == "no-referrer"
        assert f'href="/{token}/-/report/{study_id}"' in get(address)[1]


def test_another_user_of_this_machine_is_not_let_in(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    path = str(tmp_path / "results.sqlite")
    fill(path)
    with serving(path) as (told, _):
        address = urllib.parse.urljoin(told, "/")
        # All modules first: the other user may be unable to read ours.
        program = (
            "import encodings.idna, os, sys, urllib.error, urllib.request\n"
            "os.setgid(65534); os.setuid(65534)\n"
            "try: urllib.request.urlopen(sys.argv[1], timeout=60)\n"
            "except urllib.error.HTTPError as error: print(error.code)"
        )
        asked = subprocess.run(
            [sys.executable, "-c", program, f"{address}results/v_trials.json"],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert asked.stdout == "403\n", asked.stderr


def test_nothing_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    fill(str(path))
    with serving(str(path)) as (address, process):
        statements = ["DELETE FROM trials", "PRAGMA query_only = OFF", "ATTACH '/tmp/x' AS x", "VACUUM"]
        for statement in statements:
            status, _, _ = get(f"{address}results.json?{urllib.parse.urlencode({'sql': statement})}")
            assert status == 400, statement
        for leak in ("SELECT file FROM pragma_database_list", "SELECT hex(fts3_tokenizer('simple'))"):
            status, text, _ = get(f"{address}results.json?{urllib.parse.urlencode({'sql': leak})}")
            assert (status, str(tmp_path) in text) == (400, False)
        assert get(f"{address}results.db")[0] in (403, 404)
        process.send_signal(signal.SIGINT)
        # Mistakes are told to whoever asked, not to whoever started it.
        assert process.communicate(timeout=PATIENCE)[1] == "Ctrl-C ends it\n"
    with Store.open(str(path)) as store:
        assert len(store.trials(store.study().id)) == 2


def test_what_is_recorded_meanwhile_is_seen_and_writers_do_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "results.sqlite")
    study_id, _ = fill(path)
    monkeypatch.setattr("bisect_env.storage.backend.BUSY_SECONDS", 0.5)
    with serving(path) as (address, _), Store.open(path) as store:
        for number in range(20):
            question = {"sql": "SELECT count(*) AS n FROM v_trials", "_shape": "array"}
            (answer,) = json.loads(get(f"{address}results.json?{urllib.parse.urlencode(question)}")[1])
            assert answer["n"] == 2 + number
            # Half a second is all that it would wait for a reader who held a lock.
            assert record_trial(store, study_id, record())


def test_a_port_that_is_taken() -> None:
    with listening(0) as listener:
        port = listener.getsockname()[1]
        with (
            pytest.raises(
                UsageError,
                match=rf"port {port} of 127.0.0.1 cannot be used: Address already in use[^$]*--port",
            ),
            listening(port),
        ):
            pass


def test_without_datasette(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bisect_env.web import serve

    monkeypatch.setattr(serve.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"not installed[^$]*bisect-env\[web\]"):
        serve.serve(str(tmp_path / "x"), 0, tell=lambda _address, _note: None)
