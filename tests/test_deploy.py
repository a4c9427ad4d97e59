"""The files in `deploy/` and compose.yml have the shape that their readers expect, and give each process only the secrets that it needs."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
MANIFESTS = ROOT / "deploy" / "kubernetes.yaml"


def secrets() -> dict[str, set[str]]:
    """Return the variables of each secret that the manifests say to create."""
    text = MANIFESTS.read_text().replace("\\\n#", "")
    return {
        name: set(re.findall(r"--from-literal=(\w+)=", rest))
        for name, rest in re.findall(r"kubectl create secret generic (\S+) (.*)", text)
    }


def variables(kind: str) -> set[str]:
    """Return the variables that a container of Kubernetes gets."""
    pods = [item for item in yaml.safe_load_all(MANIFESTS.read_text()) if item["kind"] == "Deployment"]
    (pod,) = [pod for pod in pods if pod["metadata"]["name"] == f"holdfast-{kind}"]
    (container,) = pod["spec"]["template"]["spec"]["containers"]
    sources: list[dict[str, Any]] = container.get("envFrom", [])
    named = {entry["name"] for entry in container.get("env", [])}
    return named.union(*(secrets()[source["secretRef"]["name"]] for source in sources))


def test_workers_on_kubernetes_do_not_get_the_administrators_token():
    assert variables("worker") == {"HOLDFAST_STORE"}
    assert variables("api") == {"HOLDFAST_STORE", "HOLDFAST_TOKEN"}


def test_workers_of_compose_do_not_get_the_administrators_token():
    services = yaml.safe_load((ROOT / "compose.yml").read_text())["services"]
    assert "HOLDFAST_TOKEN" in services["api"]["environment"]
    others = [service for name, service in services.items() if name != "api"]
    assert not any("HOLDFAST_TOKEN" in service.get("environment", {}) for service in others)


def test_the_dashboard_has_the_shape_that_grafana_reads():
    board = json.loads((ROOT / "deploy" / "grafana.json").read_text())
    assert {"title", "uid", "schemaVersion", "templating", "time", "panels"} <= board.keys()
    variables = {variable["name"] for variable in board["templating"]["list"]}
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        covered = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in covered) < 24, panel["title"]
        assert not cells & covered, panel["title"]
        cells |= covered
        if panel["type"] == "row":
            continue
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert set(re.findall(r"\$(?!__)(\w+)", str(panel["targets"]))) <= variables
        assert [target["refId"] for target in panel["targets"]] == list("ABC"[: len(panel["targets"])])
        assert all(target["expr"] and target["legendFormat"] for target in panel["targets"])
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert {"datasource", "agent"} == variables


def test_alerts_have_the_shape_that_prometheus_reads():
    (group,) = yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text())["groups"]
    assert group.keys() == {"name", "rules"}
    for rule in group["rules"]:
        assert rule.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert re.fullmatch(r"Holdfast[A-Za-z]+", rule["alert"])
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"].keys() == {"summary", "description"}
    listed = re.findall(r"^\| `(Holdfast\w+)`", (ROOT / "docs/how-to/deploy.md").read_text(), re.MULTILINE)
    assert [rule["alert"] for rule in group["rules"]] == listed
