"""The launch files of the server: their form, and that flags, routes and metrics in them exist."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

pytest.importorskip("fastapi")

from transformer_jax.extras.serving import app, metrics
from transformer_jax.extras.serving.service import Service

FOLDER = Path(__file__).parent.parent / "docs" / "launch"
USER = 10001  # of the image


@pytest.fixture(scope="module")
def known_flags() -> set[str]:
    """Flags of `serve`, of the page that is generated from the commands."""
    text = (FOLDER.parent / "commands.md").read_text()
    section = text.partition("\n## serve\n")[2].partition("\n## ")[0]
    return set(re.findall(r"--(?:\[no\])?(\w+)", section))


def flags_of(words: list[str]) -> dict[str, str]:
    return dict(re.findall(r"--(\w+)=(\S+)", " ".join(words)))


def routes() -> set[str]:
    return set(app.create_app(Service([])).openapi()["paths"])


def read(name: str) -> list[dict]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def test_the_readme_names_every_launch_file():
    names = {path.name for path in FOLDER.iterdir()} - {"README.md"}
    assert set(re.findall(r"\]\((\w[\w.-]*)\)", (FOLDER / "README.md").read_text())) == names


def test_the_image_runs_the_server_without_rights(known_flags):
    text = (FOLDER / "Dockerfile").read_text().replace("\\\n", " ")
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line and line[0] != "#"]
    assert steps[0][0] == "FROM"
    last = dict(steps)
    commands = yaml.safe_load(last["ENTRYPOINT"]) + yaml.safe_load(last["CMD"])
    assert commands[:2] == ["transformer-jax", "serve"]
    given = flags_of(commands)
    assert set(given) <= known_flags
    assert given["host"] == "0.0.0.0"
    assert "api_keys" in given
    order = [instruction for instruction, _ in steps]
    assert order.index("USER") > max(n for n, name in enumerate(order) if name == "RUN")
    assert f"--uid {USER} {last['USER']}" in text
    assert re.search(r"http://127.0.0.1:8080(/\w+)", last["HEALTHCHECK"])[1] in routes()
    for source in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        assert all((FOLDER.parent.parent / name).exists() for name in source.split())


def test_compose_serves_a_model_that_is_mounted_and_measures_it(known_flags):
    (compose,) = read("compose.yaml")
    assert set(compose) == {"services", "secrets", "volumes"}
    server = compose["services"]["translator"]
    given = flags_of(server["command"])
    assert set(given) <= known_flags
    assert server["volumes"][0].endswith(f":{given['model'].partition('=')[2]}:ro")
    assert given["api_keys"] == f"/run/secrets/{server['secrets'][0]}"
    assert int(server["stop_grace_period"].rstrip("s")) > int(given["drain_seconds"])
    assert (FOLDER / server["build"]["context"] / server["build"]["dockerfile"]).exists()
    (prometheus,) = read("prometheus.yml")
    (job,) = prometheus["scrape_configs"]
    assert job["metrics_path"] in routes()
    assert job["static_configs"] == [{"targets": ["translator:8080"]}]


def test_the_unit_of_systemd_outlives_its_last_answers(known_flags, tmp_path):
    text = (FOLDER / "translator.service").read_text().replace("\\\n", " ")
    unit = dict(line.split("=", 1) for line in text.splitlines() if re.match(r"[A-Z]\w+=", line))
    given = flags_of(unit["ExecStart"].split())
    assert set(given) <= known_flags
    assert int(unit["TimeoutStopSec"]) > int(given["drain_seconds"])
    assert unit["ExecReload"].endswith("-HUP $MAINPID")
    assert (unit["Restart"], unit["DynamicUser"]) == ("on-failure", "yes")
    assert unit["ProtectSystem"] == "strict"
    if not shutil.which("systemd-analyze"):
        return
    copy = tmp_path / "translator.service"  # with a program that exists
    copy.write_text(text.replace("/opt/translator/venv/bin/transformer-jax", "/bin/true"))
    checked = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True)
    assert str(copy.name) not in checked.stderr, checked.stderr


def test_kubernetes_scales_on_a_metric_that_the_server_has(known_flags):
    deployment, service, budget, scaler = read("kubernetes.yaml")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    given = flags_of(container["args"])
    assert set(given) <= known_flags
    before_stop = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > before_stop + int(given["drain_seconds"])
    assert pod["securityContext"]["runAsUser"] == USER
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in routes()
        assert container[probe]["httpGet"]["port"] == container["ports"][0]["name"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {given["model"].partition("=")[2], str(Path(given["api_keys"]).parent)} <= mounts
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels == service["spec"]["selector"]
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    metric = scaler["spec"]["metrics"][0]["pods"]["metric"]["name"]
    assert f"\n{metric} " in metrics.Metrics(Service([])).page().decode()
    ((rule,),) = (adapter["rules"]["custom"] for adapter in read("prometheus-adapter.yaml"))
    assert rule["name"]["as"] == metric
    assert rule["seriesQuery"].startswith(f"{metric}{{")
