"""The examples in `deploy/` and compose.yml give each process only the secrets that it needs."""

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
