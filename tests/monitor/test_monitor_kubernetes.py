"""The manifests of the docs: they fit the schema of Kubernetes, and what they say is what `serve` understands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import kubernetes_validate
import pytest
import yaml

from monitor.scene import LIMIT_S, Scene
from offsetkeeper.testing.server import wait_until

FOLDER = Path(__file__).parents[2] / "docs" / "kubernetes"
WATCHED = """
import os, sys
def note(event, args):
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
    if event == "open" and isinstance(args[2], int) and args[2] & writing and args[0] != os.devnull:
        os.write(2, f"WRITES {args[0]}\\n".encode())
    elif event in {"os.mkdir", "os.rename", "os.remove", "os.link", "os.symlink", "tempfile.mkstemp"}:
        os.write(2, f"WRITES {event} {args}\\n".encode())
sys.addaudithook(note)
"""


def manifests(name: str) -> dict[str, Any]:
    """The objects of a file, by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all((FOLDER / name).read_text("utf-8"))}


SERVE = manifests("serve.yaml")
PARTS = SERVE | manifests("cron-job.yaml")
POD = SERVE["Deployment"]["spec"]["template"]["spec"]
[SERVER] = POD["containers"]


def mounted(folder: Path, files: dict[str, str]) -> Path:
    """Files as a kubelet mounts a secret: links into a folder of that moment, in a folder that all may write."""
    moment = folder / "..2026_01_31"
    moment.mkdir(parents=True)
    (folder / "..data").symlink_to(moment.name)
    for name, text in files.items():
        (moment / name).write_text(text, "utf-8")
        (moment / name).chmod(POD["volumes"][0]["secret"]["defaultMode"])
        (folder / name).symlink_to(f"..data/{name}")
    folder.chmod(0o1777)
    return folder


@pytest.mark.parametrize("release", ["1.28", "1.34"])
@pytest.mark.parametrize("kind", PARTS)
def test_the_manifest_fits_the_schema_of_kubernetes(kind: str, release: str) -> None:
    kubernetes_validate.validate(PARTS[kind], release, strict=True)
    within = "spec" if "spec" in PARTS[kind] else "metadata"
    wrong = {**PARTS[kind], within: {**PARTS[kind][within], "replica": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, release, strict=True)


def test_the_pod_may_do_nothing_but_serve() -> None:
    """What the level `restricted` of Pod Security asks for, and a root file system that is read only."""
    assert (POD["securityContext"]["runAsNonRoot"], POD["automountServiceAccountToken"]) == (True, False)
    assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert SERVER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not any("value" in each and "password" in each["value"].lower() for each in SERVER["env"])
    assert "secretKeyRef" not in str(POD)  # by files alone
    assert (SERVE["Deployment"]["spec"]["replicas"], SERVE["Deployment"]["spec"]["strategy"]["type"]) == (1, "Recreate")


def test_the_service_and_the_probes_lead_to_the_server() -> None:
    [port] = SERVER["ports"]
    assert port["containerPort"] == 8117
    assert SERVE["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    labels = SERVE["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert SERVE["Service"]["spec"]["selector"] == labels == SERVE["Deployment"]["spec"]["selector"]["matchLabels"]
    assert {SERVER[probe]["httpGet"]["port"] for probe in ("readinessProbe", "livenessProbe")} == {port["name"]}


def test_the_command_runs_with_its_files_answers_the_probes_and_writes_no_file(scene: Scene, tmp_path: Path) -> None:
    """The file of SQLite is none of Python's: a store on a server has none."""
    scene.group("shop", scene.topic(1, 5), [2])
    (tmp_path / "watched").mkdir()
    (tmp_path / "watched" / "sitecustomize.py").write_text(WATCHED, "utf-8")
    settings = f'store = "{scene.store}"\nbrokers = "{scene.server.bootstrap}"\n[alerts]\n'
    folder = mounted(tmp_path / "secret", {"offsetkeeper.toml": settings, "token": "a-token-of-the-secret\n"})
    variables = {each["name"]: each["value"] for each in SERVER["env"]}
    assert Path(variables["OFFSETKEEPER_CONFIG"]).parent == Path(SERVER["volumeMounts"][0]["mountPath"])
    variables["OFFSETKEEPER_CONFIG"] = str(folder / Path(variables["OFFSETKEEPER_CONFIG"]).name)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OFFSETKEEPER_")}
    path = os.pathsep.join(filter(None, (str(tmp_path / "watched"), os.environ.get("PYTHONPATH"))))
    command = [str(Path(sys.executable).parent / SERVER["command"][0]), *SERVER["command"][1:], *SERVER["args"]]
    more = ["--port", "0", "--allow-changes", "--token-file", str(folder / "token")]
    process = subprocess.Popen(
        [*command, *more],
        env={**kept, **variables, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "Serving at" in line, process.communicate()[1]
        url = f"http://127.0.0.1:{line.split(':')[2].split('/')[0]}"
        with httpx.Client(base_url=url, timeout=LIMIT_S, trust_env=False) as client:
            wait_until(lambda: client.get("/api/health").json()["look"] > 1, "there were two looks", LIMIT_S)
            probes = [SERVER[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe")]
            assert [client.get(path).status_code for path in probes] == [200, 200]
            assert "shop" in client.get("/", headers={"host": SERVER["args"][-1]}).text
            assert 'group="shop"' in client.get("/metrics").text
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=LIMIT_S)
    assert [line for line in said.splitlines() if line.startswith("WRITES")] == []
    assert process.returncode == 0


def test_the_watch_sees_a_file_that_is_written(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WATCHED, "utf-8")
    code = f"open({str(tmp_path / 'x')!r}, 'w').close()"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert f"WRITES {tmp_path / 'x'}" in done.stderr


def test_the_run_of_the_operator_mounts_its_secret_and_has_time_to_end() -> None:
    """Its fields were held against the operator's own schema, which is not here."""
    [application] = manifests("spark-application.yaml").values()
    spec = application["spec"]
    assert application["apiVersion"] == "sparkoperator.k8s.io/v1beta2"
    assert (spec["type"], spec["mode"], spec["restartPolicy"]["type"]) == ("Python", "cluster", "OnFailure")
    [secret] = spec["driver"]["secrets"]
    assert f'Path("{secret["path"]}/store")' in (FOLDER.parent / "clusters.md").read_text("utf-8")
    assert spec["driver"]["terminationGracePeriodSeconds"] >= 300
    assert "secrets" not in spec["executor"]
    assert "password" not in str(spec).lower()
    for part in ("driver", "executor"):
        assert spec[part]["securityContext"]["runAsNonRoot"]


def test_no_two_runs_of_the_cron_job_meet_and_a_fenced_one_is_not_started_again() -> None:
    """The code of a fenced run is that of the program on the same page."""
    spec = PARTS["CronJob"]["spec"]
    assert spec["concurrencyPolicy"] == "Forbid"
    [rule] = spec["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    [code] = rule["onExitCodes"]["values"]
    assert f"return {code}  # another copy has the group" in (FOLDER.parent / "scheduled.md").read_text("utf-8")
    pod = spec["jobTemplate"]["spec"]["template"]["spec"]
    assert (pod["restartPolicy"], pod["containers"][0]["command"][0]) == ("Never", "python3")
    assert pod["terminationGracePeriodSeconds"] >= 300


def test_the_rules_for_prometheus_are_rules() -> None:
    """As Prometheus reads them: groups of rules, each with an alert, an expression and words."""
    [group] = yaml.safe_load((FOLDER.parent / "prometheus-alerts.yml").read_text("utf-8"))["groups"]
    assert set(group) == {"name", "rules"}
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"]) > 10
    for rule in group["rules"]:
        assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"]
        assert str(rule.get("for", "5m"))[-1] in "smh"
