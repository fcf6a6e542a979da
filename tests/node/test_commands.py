"""The commands as a person runs them, with the model that the repository ships."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from models.contract import FindingState
from node import config
from node.outputs.vocabulary import STATES
from tests.paths import REPOSITORY
from tests.support import films
from tests.support.service import INTERRUPTIBLE, Service, run_command, settings_for


def test_read_writes_the_study_and_prints_one_json_document(
    tmp_path: Path, phantom_model: Path, opacity_film: Path
) -> None:
    done = run_command("read", opacity_film, "--model", phantom_model, "--out", tmp_path, "--json")

    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout)["studies"]
    states = {finding["prompt"]: finding["state"] for finding in report["films"][0]["findings"]}
    assert [key for key, state in states.items() if state == "present"] == ["lung_opacity"]
    assert len(states) == 13
    assert report["model"]["engine"] == "onnx"
    assert (tmp_path / report["study"] / "sr.dcm").exists()
    said = (tmp_path / report["study"] / "report.txt").read_text(encoding="utf-8")
    *_, left_out = (line for line in said.splitlines() if STATES[FindingState.LEFT_OUT].capitalize() in line)
    assert "Pneumonia" in left_out


@pytest.mark.drill(part="packaging")
@pytest.mark.parametrize("option", [("--population", "phantoms"), ("--uncalibrated", "accept")])
def test_read_calls_findings_present_where_the_caller_says_so(
    option: tuple[str, str], tmp_path: Path, phantom_model: Path, opacity_film: Path
) -> None:
    done = run_command("read", opacity_film, "--model", phantom_model, "--out", tmp_path, "--json", *option)

    (report,) = json.loads(done.stdout)["studies"]
    assert "present" in {finding["state"] for finding in report["films"][0]["findings"]}
    said = (tmp_path / report["study"] / "report.txt").read_text(encoding="utf-8")
    assert ("phantoms; they mean nothing on patient films" in said) == (option[1] == "phantoms")
    assert ("are accepted by this site" in said) == (option[1] == "accept")


def test_ask_answers_a_person_in_words_and_names_words_that_the_model_never_learned(
    phantom_model: Path, opacity_film: Path
) -> None:
    done = run_command("ask", opacity_film, "--model", phantom_model, "--prompt", "Lung opacity")
    unknown = run_command("ask", opacity_film, "--json", "--model", phantom_model, "--prompt", "banana or tuberculosis")

    assert (done.returncode, unknown.returncode) == (0, 0), done.stderr + unknown.stderr
    assert f"{opacity_film}\n\nLung opacity: present, AI probability " in done.stdout
    assert "not for diagnosis" in done.stdout and "{" not in done.stdout
    (question,) = json.loads(unknown.stdout)["questions"]
    assert (question["state"], question["positive"], question["boxes"]) == (None, False, [])
    assert (question["error"], question["words"]) == ("never_learned", ["banana", "tuberculosis"])
    assert question["message"] == "this model never learned: banana, tuberculosis"


def test_ask_answers_each_question_and_a_prompt_with_a_box(phantom_model: Path, chest_film: Path) -> None:
    common = ("ask", chest_film, "--json", "--model", phantom_model)

    apart = run_command(*common, "--engine", "torch", "--prompt", "Pleural effusion", "--prompt", "Edema")
    together = run_command(*common, "--engine", "onnx", "--prompt", "Edema", "--box", "100,200,700,900")
    too_much = run_command(*common, "--prompt", "Edema", "--box", "1,2,3,4", "--box", "5,6,7,8")

    assert apart.returncode == 0, apart.stderr
    questions = [*json.loads(apart.stdout)["questions"], *json.loads(together.stdout)["questions"]]
    assert [(question["prompt"], question["box"]) for question in questions] == [
        ("Pleural effusion", None),
        ("Edema", None),
        ("Edema", [100, 200, 700, 900]),
    ]
    for question in questions:
        assert set(question) == {
            *("prompt", "box", "sentence", "by", "said", "score", "state", "positive", "reason", "boxes", "notes")
        }
        assert question["positive"] == (question["state"] == "present")
    assert (too_much.returncode, too_much.stdout) == (2, "")


def test_check_prints_what_is_in_force_or_every_mistake(tmp_path: Path, phantom_model: Path) -> None:
    good, alone, bad = (tmp_path / f"{name}.toml" for name in ("node", "alone", "bad"))
    model = config.ModelSettings(directory=phantom_model)
    settings = settings_for(tmp_path / "node", archive_port=4242, model=model)
    good.write_text(config.render(settings), encoding="utf-8")
    alone.write_text(config.render(dataclasses.replace(settings, destinations=())), encoding="utf-8")
    bad.write_text("[listener]\nport = -1\ncolor = 3\n[storage]\n", encoding="utf-8")

    shown, refused, unsent = run_command("check", good), run_command("check", bad), run_command("check", alone)
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "format").write_text("4\n", encoding="utf-8")
    newer = run_command("check", good)

    assert (newer.returncode, "format '4'" in newer.stderr) == (2, True)
    assert shown.returncode == 0
    assert config.load(good) == config.parse(tomllib.loads(shown.stdout))
    assert unsent.stdout.startswith(f"# {config.NOTHING_IS_SENT}\n# {config.ZONE_IS_LEFT}\n")
    assert config.parse(tomllib.loads(unsent.stdout)) == config.load(alone)
    assert refused.returncode == 2
    assert sorted(line.split(":")[1].strip() for line in refused.stderr.splitlines()) == [
        "listener.callers", "listener.color", "listener.port", "storage.directory"
    ]  # fmt: skip


@pytest.mark.drill(part="packaging")
@pytest.mark.parametrize("table", ["listener", "http"])
def test_a_port_that_is_taken_is_named(table: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        settings = settings_for(tmp_path / "node", archive_port=4242)
        part = dataclasses.replace(getattr(settings, table), port=port)
        path = tmp_path / "node.toml"
        path.write_text(config.render(dataclasses.replace(settings, **{table: part})), encoding="utf-8")

        done = run_command("serve", path)

    said = f"{table}: 127.0.0.1:{port} cannot be opened (Address already in use); set another {table}.port"
    assert (done.returncode, said in done.stderr) == (2, True)


MODEL = ("--model", "models/weights/phantom")


@pytest.mark.parametrize(
    "arguments",
    [
        ("read", "nothing.dcm", *MODEL, "--out", "out"),
        ("read", "README.md", "--model", "nowhere", "--out", "out"),
        ("ask", "nothing.dcm", *MODEL, "--prompt", "Edema"),
        ("ask", "nothing.dcm", *MODEL, "--box", "1,2,3"),
        ("ask", "nothing.dcm", *MODEL, "--prompt", "Edema", "--threads", "-3"),
        ("read", "README.md", *MODEL, "--out", "README.md"),
        ("demo", *MODEL, "--out", "README.md"),
        ("check", "nothing.toml"),
        ("serve", "nothing.toml"),
        ("status", "nothing.toml"),
        ("read",),
        (),
    ],
)
def test_wrong_input_ends_with_2_and_one_clear_line(arguments: tuple[str, ...]) -> None:
    done = run_command(*arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: ")


@pytest.mark.drill(part="packaging")
@pytest.mark.parametrize("unread", ["output", "both"])
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["node", "--help"], 0),
        (["models.phantoms", "--help"], 0),
        (["node", "explain", "node/commands/films/normal.dcm"], 141),
        (["node", "status", "nowhere.toml"], 2),
    ],
    ids=["help", "phantoms", "explain", "an error"],
)
def test_a_reader_that_goes_is_no_fault(words: list[str], code: int, unread: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    error = writing if unread == "both" else subprocess.PIPE
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=writing, stderr=error, text=True, check=False)
    os.close(writing)
    is_told = code == 2 and unread == "output"
    assert done.returncode == (141 if code == 2 and not is_told else code), done.stderr
    assert (done.stderr or "").startswith("error: nowhere.toml" if is_told else "")
    assert is_told or not done.stderr


@pytest.mark.drill(part="packaging")
def test_nothing_of_the_patient_is_printed(tmp_path: Path, phantom_model: Path) -> None:
    film = films.thumbnail({"PatientName": "Zyxwvu^Qrst", "PatientID": "PID-7788", "PatientBirthDate": "not a date"})
    path = films.saved(tmp_path, film)

    done = run_command("read", path, "--model", phantom_model, "--engine", "torch", "--out", tmp_path / "out", "--json")

    assert done.returncode == 0, done.stderr
    for secret in ("Zyxwvu", "PID-7788", "not a date"):
        assert secret not in done.stdout + done.stderr


@pytest.mark.drill(part="packaging")
def test_ctrl_c_ends_a_reading_with_a_line_and_the_next_goes_on(tmp_path: Path, phantom_model: Path) -> None:
    folder, out = tmp_path / "films", tmp_path / "out"
    folder.mkdir()
    for number in range(8):
        film = films.as_another(films.thumbnail(), str(number), study=str(number))
        (folder / f"{number:02d}.dcm").write_bytes(films.file_bytes(film))
    read = ["read", str(folder), "--model", str(phantom_model), "--out", str(out)]
    command = [*INTERRUPTIBLE, sys.executable, "-m", "node", *read]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reading:
        assert reading.stderr is not None
        seen = list(itertools.islice((line for line in reading.stderr if line.endswith(": read\n")), 3))
        reading.send_signal(signal.SIGINT)
        rest = reading.stderr.read().splitlines()

    assert reading.returncode == 130
    assert not any("Traceback" in line for line in (*seen, *rest))
    assert re.fullmatch(
        rf"stopped; \d+ of 8 studies are in {re.escape(str(out))}; run the same command again to go on", rest[-1]
    )
    there = len(list(out.rglob("report.json")))
    done = run_command(*read)
    assert 0 < there < 8
    assert f"studies in {out}: " in done.stderr.splitlines()[-1]
    assert f"{there} done before" in done.stderr.splitlines()[-1]


def test_ctrl_c_stops_a_node_in_good_order(tmp_path: Path) -> None:
    with Service(settings_for(tmp_path / "node", archive_port=104)) as node:
        os.kill(node.pid, signal.SIGINT)

        assert node.wait_until_dead(limit_seconds=30) == 130
        assert node.logged("service.stopped")


@pytest.mark.drill(part="deployment")
def test_a_node_ends_when_its_terminal_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text(config.render(settings_for(tmp_path / "spool", archive_port=1)), encoding="utf-8")
    ours, theirs = pty.openpty()
    command = ["setsid", "--ctty", sys.executable, "-m", "node", "serve", str(path)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        said = b""
        while b"service.listening" not in said:
            said += os.read(ours, 10_000)
        os.close(ours)

        assert said.replace(b"\x1b[2m", b"").startswith(b"20"), "lines for people"
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
