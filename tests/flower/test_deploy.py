"""A deployment is Flower's own processes: they start, work, refuse strangers, and none of them stays behind."""

import os
import signal
import ssl
import stat
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr")

from support.deployed_app import light_app
from support.faults import kill_part

from fedatoms.flower import processes
from fedatoms.flower.commands import PORTS, Value, config_words, free_ports
from fedatoms.flower.demonstration import demo
from fedatoms.flower.deploy import Deployment, DeploymentError, deployed
from fedatoms.flower.keys import certificates, node_key

CLIENT = """
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def add(message: Message, context: Context) -> Message:
    import fedatoms

    number = message.content["numbers"]["number"] + context.node_config["partition-id"]
    return Message(RecordDict({"numbers": MetricRecord({"number": number})}), reply_to=message)
"""
SERVER = """
from flwr.app import Context, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    number = context.run_config["number"]
    if number < 0:
        raise ValueError(f"{number} is less than 0")
    ask = lambda node: Message(
        RecordDict({"numbers": MetricRecord({"number": number})}), dst_node_id=node, message_type=MessageType.QUERY
    )
    replies = grid.send_and_receive([ask(node) for node in grid.get_node_ids()], timeout=60)
    print("sum:", sum(reply.content["numbers"]["number"] for reply in replies))
"""


def an_app(folder: Path) -> Path:
    return light_app(folder, "adding", CLIENT, SERVER, "number = 0")


def living(folder: Path) -> list[str]:
    """The commands of all processes that have a folder in their command line or environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        words = processes._read(int(path.name), "cmdline") + processes._read(int(path.name), "environ")
        if str(folder).encode() in words:
            found.append(processes._read(int(path.name), "cmdline").decode())
    return found


@pytest.mark.slow
def test_a_federation_with_tls_works_refuses_a_stranger_and_leaves_nothing(tmp_path: Path) -> None:
    app, folder = an_app(tmp_path / "app"), tmp_path / "deployment"
    heard: list[str] = []
    with deployed(folder, [{"partition-id": i, "title": f"node {i}"} for i in (10, 20)], tls=True) as deployment:
        lines = deployment.run(app, {"number": 1}, timeout=60, each_line=heard.append)
        assert "sum: 32" in lines and heard == lines
        strangers = {node_key(tmp_path, "stranger"): "Failed to activate SuperNode", None: "must be registered"}
        for key, words in strangers.items():
            assert any(words in line for line in deployment.try_node(key))
        assert deployment.online() == 2
        with pytest.raises(DeploymentError, match="-1 is less than 0"):
            deployment.run(app, {"number": -1}, timeout=60)
        assert any("flower-superexec" in command for command in living(folder))
    assert living(folder) == []
    written = [*folder.glob("link.db*"), *(folder / "logs").iterdir(), *(folder / "flower").rglob("apps/**/*.py")]
    assert [path for path in written if path.stat().st_mode & 0o077] == []
    assert {path.name for path in written} >= {"link.db", "link.log", "node-0.log"}


@pytest.mark.slow
def test_an_interrupt_in_a_run_ends_all_that_was_started(tmp_path: Path) -> None:
    app, folder = an_app(tmp_path / "app"), tmp_path / "deployment"

    def interrupt(line: str) -> None:
        if "flwr-serverapp" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), deployed(folder, [{"partition-id": 0}]) as deployment:
        kill_part(deployment, "link")
        assert not any("flower-superlink" in command for command in living(folder))
        deployment.start_link()
        assert deployment.online() == 1  # the database remembers it
        deployment.run(app, timeout=60, each_line=interrupt)
    assert living(folder) == []


def test_a_part_that_ends_at_once_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match=r"(?s)link ended with status 1.*no_such_module"):
        with deployed(tmp_path / "deployment", [], env={"PYTHONSTARTUP": "", "PYTHONPATH": _spoiled(tmp_path)}):
            raise AssertionError("it started")
    assert living(tmp_path / "deployment") == []


def _spoiled(folder: Path) -> str:
    """A folder whose `flwr` cannot be imported."""
    (folder / "flwr").mkdir()
    (folder / "flwr" / "__init__.py").write_text("import no_such_module")
    return str(folder)


def test_a_folder_holds_one_deployment(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    with pytest.raises(FileExistsError, match="Use a new folder"), deployed(tmp_path, []):
        raise AssertionError("it started")


def test_a_demo_whose_nodes_do_not_answer_is_an_error_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = SimpleNamespace(run=lambda *words, **more: ["stopped in round 1"])
    monkeypatch.setattr("fedatoms.flower.demonstration.deployed", lambda *words, **more: nullcontext(silent))
    with pytest.raises(DeploymentError, match=r"(?s)nodes did not answer.*stopped in round 1"):
        demo(1, 1, tls=False, say=lambda line: None, done=lambda rounds: None)


def test_a_demo_counts_the_rounds_that_the_server_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    logged, done = "INFO : round {}: loss 0.5000, 1 clients, server 50.00 %", list[int]()

    def run(*words: object, each_line: Callable[[str], None], **more: object) -> list[str]:
        for number in (1, 2):
            each_line(f"INFO : round {number}: asking 1 of 1 clients")
            each_line(logged.format(number))
        return []

    monkeypatch.setattr(
        "fedatoms.flower.demonstration.deployed", lambda *words, **more: nullcontext(SimpleNamespace(run=run))
    )
    with pytest.raises(DeploymentError):
        demo(1, 2, tls=False, say=lambda line: None, done=done.append)
    assert done == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "number"),
    [("starting a SuperLink", signal.SIGINT), ("starting a SuperLink", signal.SIGHUP), ("are online", signal.SIGINT)],
    ids=["Ctrl-C at the start", "a closed terminal", "Ctrl-C in the run"],
)
def test_an_interrupted_demo_leaves_neither_process_nor_file(when: str, number: signal.Signals, tmp_path: Path) -> None:
    # as from a terminal, also if this test is run in the background, where both signals may be ignored
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    code += "signal.signal(signal.SIGHUP, signal.SIG_DFL);"
    code += "from fedatoms.cli import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", code, "flower", "demo", "--nodes", "1", "--rounds", "1"]
    env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}  # all that it starts has the first
    with subprocess.Popen(words, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        assert command.stdout is not None and command.stderr is not None
        next(line for line in command.stdout if when in line)
        while len(living(tmp_path)) < 3:  # with the one that watches
            assert command.poll() is None
            time.sleep(processes.PAUSE)
        command.send_signal(number)
        assert (command.wait(timeout=60), command.stderr.read()) == (130, "fedatoms: stopped.\n")
    assert living(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@given(st.dictionaries(st.from_regex(r"[a-z0-9_-]+", fullmatch=True), st.text() | st.integers(-9, 9) | st.booleans()))
def test_flower_reads_a_config_as_it_was(config: dict[str, Value]) -> None:
    from flwr.common.config import parse_config_args

    assert parse_config_args([config_words(config)], flatten=False) == config


@pytest.mark.parametrize("value", [0.1, 1e-5, 1e22, -0.0])
def test_flower_reads_a_number_as_it_was(value: float) -> None:
    assert tomllib.loads(config_words({"rate": value})) == {"rate": value}


def test_a_config_with_a_name_that_flower_would_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="'two words' is not of letters"):
        config_words({"two words": 1})


def test_free_ports_are_different_and_never_those_of_outgoing_connections() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20 and set(ports) <= set(PORTS)


NODE = """
import pathlib, sys, time
starts = pathlib.Path("starts")
before = len(starts.read_text()) if starts.exists() else 0
starts.write_text("x" * (before + 1))
if before < int(sys.argv[1]):
    sys.exit(sys.argv[2])
print("SuperNode ID: 1", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("failures", "why", "starts"),
    [
        pytest.param(2, "SSL/TLS handshake error detected.", 3, id="two handshakes"),
        pytest.param(3, "SSL/TLS handshake error detected.", 3, id="every handshake"),
        pytest.param(1, "no such federation", 1, id="another failure"),
    ],
)
def test_a_node_is_started_again_when_its_handshake_failed_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int, why: str, starts: int
) -> None:
    command = [sys.executable, "-c", NODE, str(failures), why]
    monkeypatch.setattr("fedatoms.flower.deploy.node_command", lambda *_, **__: command)
    deployment = Deployment(tmp_path / "deployment", [{}], tls=False, env={})
    try:
        with pytest.raises(DeploymentError, match=why) if failures != 2 else nullcontext():
            deployment.start_nodes()
    finally:
        deployment.end()
    assert len((deployment.folder / "starts").read_text()) == starts


def test_ending_reaches_children_in_sessions_of_their_own_and_those_that_do_not_listen(tmp_path: Path) -> None:
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {deaf!r}], start_new_session=True).wait()"
    mark, log = f"{tmp_path}/", tmp_path / "log"
    parent = processes.start([sys.executable, "-c", code], mark, env={}, cwd=tmp_path, log=log)
    other = processes.start([sys.executable, "-c", "input()"], "other/", env={}, cwd=tmp_path)
    while "deaf" not in log.read_text():
        threading.Event().wait(0.02)
    assert len(processes.marked(mark)) == 2
    processes.end(mark, patience=0.3)
    assert processes.marked(mark) == [] and parent.wait() != 0
    other.communicate()


def test_a_server_certificate_is_trusted_for_its_names_only(tmp_path: Path) -> None:
    files = certificates(tmp_path, names=("localhost", "link.example"), addresses=("127.0.0.1",))
    for name in ("localhost", "link.example", "127.0.0.1"):
        shake_hands(*files, name)
    with pytest.raises(ssl.SSLCertVerificationError, match="elsewhere"):
        shake_hands(*files, "elsewhere")


def shake_hands(ca: Path, certificate: Path, key: Path, name: str) -> None:
    """Speaks TLS between two ends in memory; the client verifies all it can."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=ca)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    server.load_cert_chain(certificate, key)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there, server_hostname=name), server.wrap_bio(there, back, server_side=True)]
    waiting: list[Callable[[], None]] = [end.do_handshake for end in ends]
    while waiting:
        for step in list(waiting):
            try:
                step()
                waiting.remove(step)
            except ssl.SSLWantReadError:
                continue


def test_secrets_are_for_their_owner_and_are_never_overwritten(tmp_path: Path) -> None:
    key = node_key(tmp_path, "node")
    for path in (certificates(tmp_path).key, key.private):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        node_key(tmp_path, "node")


def test_the_deployment_and_what_outlives_a_server_need_neither_torch_nor_flower_to_be_imported() -> None:
    code = "import sys; sys.modules.update(dict.fromkeys(['torch', 'flwr', 'cryptography']));"
    code += "import fedatoms.flower.deploy, fedatoms.flower.last_words"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
