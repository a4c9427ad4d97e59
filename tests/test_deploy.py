"""The files in `deploy/` and compose.yml have the shape that their readers expect, and give each process only the secrets that it needs."""

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[1]
MANIFESTS = ROOT / "deploy" / "kubernetes.yaml"
FILES = ("kubernetes.yaml", "upgrade.yaml", "network.yaml", "ingress.yaml", "autoscaling.yaml")


def resources(*files: str) -> dict[tuple[str, str], Any]:
    """Return the resources of Kubernetes in these files, by kind and name."""
    items = [item for file in files for item in yaml.safe_load_all((ROOT / "deploy" / file).read_text())]
    return {(item["kind"], item["metadata"]["name"]): item for item in items}


RESOURCES = resources(*FILES)


def secrets() -> dict[str, set[str]]:
    """Return the variables of each secret that the manifests say to create."""
    text = MANIFESTS.read_text() + (ROOT / "deploy" / "upgrade.yaml").read_text()
    return {
        name: set(re.findall(r"--from-literal=(\w+)=", rest))
        for name, rest in re.findall(r"kubectl create secret generic (\S+) (.*)", text)
    }


def variables(kind: str, name: str) -> set[str]:
    """Return the variables that a container of Kubernetes gets."""
    (container,) = RESOURCES[kind, name]["spec"]["template"]["spec"]["containers"]
    sources: list[dict[str, Any]] = container.get("envFrom", [])
    named = {entry["name"] for entry in container.get("env", [])}
    return named.union(*(secrets()[source["secretRef"]["name"]] for source in sources))


def test_workers_on_kubernetes_do_not_get_the_administrators_token():
    assert variables("Deployment", "holdfast-worker") == {"HOLDFAST_STORE"}
    assert variables("Deployment", "holdfast-api") == {"HOLDFAST_STORE", "HOLDFAST_TOKEN"}
    assert variables("Job", "holdfast-upgrade-1-0") == {"HOLDFAST_STORE"}
    assert secrets().keys() == {"holdfast", "holdfast-api", "holdfast-upgrade"}


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


@pytest.mark.parametrize("name", [name for name in RESOURCES if name[0] != "ScaledObject"])
def test_kubernetes_accepts_the_manifests(name: tuple[str, str]):
    version = kubernetes_validate.latest_version()
    kubernetes_validate.validate(RESOURCES[name], version, strict=True)


def test_keda_accepts_the_autoscaling():
    scaled = RESOURCES["ScaledObject", "holdfast-worker"]
    assert (scaled["apiVersion"], *scaled["spec"]) == (
        *("keda.sh/v1alpha1", "scaleTargetRef", "minReplicaCount", "maxReplicaCount"),
        *("pollingInterval", "advanced", "triggers"),
    )
    spec = scaled["spec"]
    assert ("Deployment", spec["scaleTargetRef"]["name"]) in RESOURCES
    assert 0 < spec["minReplicaCount"] < spec["maxReplicaCount"]
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    pod = {"scaleTargetRef": {"kind": "Deployment", "name": "x"}, "maxReplicas": 2, "behavior": behavior}
    hpa = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "spec": pod}
    kubernetes_validate.validate(hpa, kubernetes_validate.latest_version(), strict=True)
    for trigger in spec["triggers"]:
        assert trigger["type"] == "prometheus"
        assert trigger["metricType"] in {"Value", "AverageValue"}  # Utilization is for CPU and memory
        assert trigger["metadata"].keys() == {"serverAddress", "query", "threshold", "ignoreNullValues"}
        assert all(isinstance(value, str) for value in trigger["metadata"].values())


def test_the_policies_the_scrapes_and_the_ingress_select_what_is_deployed():
    pods = {
        item["spec"]["template"]["metadata"]["labels"]["app"]: item["spec"]["template"]["spec"]
        for (kind, _), item in RESOURCES.items()
        if kind == "Deployment"
    }
    scrapes = yaml.safe_load((ROOT / "deploy" / "prometheus.yaml").read_text())
    assert [config["relabel_configs"][0]["regex"] for config in scrapes["scrape_configs"]] == [*pods]
    assert (ROOT / "deploy" / scrapes["rule_files"][0]).exists()
    for app, pod in pods.items():
        policy = RESOURCES["NetworkPolicy", app]["spec"]
        assert policy["podSelector"] == {"matchLabels": {"app": app}}
        ports = {port["containerPort"] for container in pod["containers"] for port in container["ports"]}
        assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == ports
        for constraint in pod["topologySpreadConstraints"]:
            assert constraint["labelSelector"] == {"matchLabels": {"app": app}}
    (rule,) = RESOURCES["Ingress", "holdfast"]["spec"]["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    service = RESOURCES["Service", backend["name"]]["spec"]
    assert backend["port"]["name"] in {port["name"] for port in service["ports"]}
