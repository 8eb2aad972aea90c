"""The page for labelling: its requests one by one, what it refuses, and clicks in a real browser."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
import warnings
from importlib import import_module
from pathlib import Path

import pytest
import torch
from threadpoolctl import ThreadpoolController

from annotate import __main__ as annotate

EXAMPLE = Path(__file__).parents[3] / "examples" / "annotate"
HOST = "127.0.0.1:8000"
SAME = {"origin": f"http://{HOST}"}


@pytest.fixture
def client(session):
    pytest.importorskip("fastapi", reason="the extra 'serve' is not installed: no FastAPI")
    with warnings.catch_warnings():
        # Of starlette, about the client that it will want one day.
        warnings.simplefilter("ignore")
        testclient = import_module("fastapi.testclient")
    app = import_module("annotate.app")
    return testclient.TestClient(app.page(session, 8000), base_url=f"http://{HOST}")


def test_a_click_is_answered_by_what_it_flips(client, session):
    text = client.get("/").text
    assert "1 of 5 done, 1 in part" in text
    assert "&lt;script&gt;," in text
    assert "&lt;b&gt;bold&lt;/b&gt;" in text
    assert "<b>bold" not in text
    value = 1 - session.completion(0).best[0].labels[1]
    answer = client.post("/rows/0/marks", json={"label": 1, "value": value}, headers=SAME)
    assert answer.status_code == 200
    assert f"because sea = {value}: sun {value ^ 1} → {value}" in answer.text
    assert 'id="label-0" class="flipped' in answer.text
    released = client.post("/rows/0/marks", json={"label": 1, "value": None}, headers=SAME)
    assert f"because sea = unknown: sun {value} → {value ^ 1}" in released.text


def test_an_acceptance_is_written_and_leads_on(client, session):
    assert 'data-row="1"' in client.post("/rows/0/accept", json={}, headers=SAME).text
    assert 'data-row="2"' in client.post("/rows/1/accept", json={}, headers=SAME).text
    assert session.output.read_text().count("\n") == 6
    assert "3 of 5 done" in client.get("/rows/2").text


@pytest.mark.parametrize(
    "headers",
    [{}, {"origin": "http://elsewhere.example"}, {"origin": "null"}, SAME | {"host": "evil.example"}],
)
def test_other_sites_write_nothing(client, session, headers):
    assert client.post("/rows/0/accept", json={}, headers=headers).status_code == 403
    assert not session.output.exists()


def test_a_name_that_leads_here_reads_nothing(client):
    assert client.get("/rows/0", headers={"host": "evil.example:8000"}).status_code == 403
    assert client.get("/rows/0", headers={"host": "localhost:8000"}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/rows/5/accept", {}, 404),
        ("/rows/-1/marks", {"label": 0, "value": 1}, 404),
        ("/rows/0/marks", {"label": 4, "value": 1}, 404),
        ("/rows/0/marks", {"label": 0, "value": 2}, 422),
        ("/rows/0/nonsense", {}, 422),
    ],
)
def test_requests_that_make_no_sense_are_refused(client, session, path, body, code):
    assert client.post(path, json=body, headers=SAME).status_code == code
    assert not session.output.exists()


def test_a_file_that_cannot_be_written_is_said(client, session):
    session.output.write_text("another's")
    answer = client.post("/rows/0/accept", json={}, headers=SAME)
    assert answer.status_code == 422
    assert "exists" in answer.json()["detail"]


@pytest.fixture
def command(estimator, table, tmp_path):
    saved_to = tmp_path / "model.safetensors"
    estimator.save(saved_to)
    return [str(saved_to), str(table), "--output", str(tmp_path / "labelled.csv")]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--output", "labelled.npz"], "--output: expected a file ending in .csv or .tsv"),
        (["--port", "0"], "--port: expected one of 1 to 65535"),
        (["--part", "test"], "--part: expected all rows"),
    ],
)
def test_mistakes_of_the_command_are_named(command, capsys, change, words):
    with pytest.raises(SystemExit):
        annotate.main([*command, *change])
    assert words in capsys.readouterr().err


def test_rows_are_answered_by_one_thread(command, monkeypatch):
    threads, found = torch.get_num_threads(), []
    pools = [each for each in ThreadpoolController().info() if each["user_api"] == "blas"]
    app = import_module("annotate.app")

    def serve(session, port):
        blas = [each["num_threads"] for each in ThreadpoolController().info() if each["user_api"] == "blas"]
        found.append((torch.get_num_threads(), blas, port))

    monkeypatch.setattr(app, "serve", serve)
    try:
        torch.set_num_threads(2)
        annotate.main(command)
    finally:
        torch.set_num_threads(threads)
    assert found == [(1, [1] * len(pools), annotate.PORT)]


def test_the_table_itself_and_tables_of_others_are_not_written(command, capsys, tmp_path):
    with pytest.raises(SystemExit):
        annotate.main([*command[:3], command[1]])
    assert "another file than the table" in capsys.readouterr().err
    (tmp_path / "labelled.csv").write_text("name,age\nan,3\n")
    with pytest.raises(SystemExit):
        annotate.main(command)
    assert "--force starts it anew" in capsys.readouterr().err


@pytest.fixture
def address(command):
    """Of the page, served by the command in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = [sys.executable, str(EXAMPLE), *command, "--port", str(port)]
    with subprocess.Popen(start, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().partition(" ")[0]
        for _ in range(100):
            with socket.socket() as door:
                if door.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield url
        server.terminate()


@pytest.fixture
def browser(tmp_path):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(argument)
    service = import_module("selenium.webdriver.chrome.service").Service(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    driver.implicitly_wait(10)
    yield driver
    driver.quit()


def wait_for(condition, seconds: float = 10.0) -> None:
    """Until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the page did not change"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1200])
def test_a_table_is_labelled_by_clicking(address, browser, tmp_path, width):
    def text(name: str) -> str:
        script = "return document.getElementById(arguments[0])?.textContent.trim() ?? ''"
        return browser.execute_script(script, name)

    def click(selector: str) -> None:
        browser.find_element("css selector", selector).click()

    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(address)
    wait_for(lambda: text("progress") == "1 of 5 done, 1 in part")
    value = 1 - int(browser.find_element("css selector", "#label-1 .answer").text)
    click(f"#label-1 [data-value='{value}']")
    wait_for(lambda: f"because sea = {value}: sun {value ^ 1} → {value}" in text("changes"))
    assert "flipped" in browser.find_element("id", "label-0").get_attribute("class")
    assert f"sea = {value}: sun" in text("effects")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    browser.save_screenshot(str(tmp_path / f"page_{width}.png"))
    click("#keep")
    wait_for(lambda: text("progress") == "2 of 5 done, 2 in part")
    click("#accept")
    wait_for(lambda: text("progress") == "3 of 5 done, 2 in part")
    browser.find_element("tag name", "body").send_keys("u")
    wait_for(lambda: browser.current_url.endswith("/rows/4"))
    assert text("error") == ""
    lines = [line.split(",")[-4:] for line in (tmp_path / "labelled.csv").read_text().splitlines()]
    assert lines[1] == ["", str(value), "", ""]
    assert "" not in lines[2]
    assert lines[3:] == [["", "", "", ""], ["1", "", "", ""], ["", "", "", ""]]
