"""Where the manifests lie, and what published schemas say of them."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
BASE = KUBERNETES / "base"
COMPONENTS = KUBERNETES / "components"
KSERVE = ROOT / "deploy" / "kserve"

# The oldest whose kubelets pause before SIGTERM without being asked to (preStop.sleep), and the newest with a schema.
VERSIONS = ("1.30", "1.37")


def load(path: Path) -> dict[str, Any]:
    """The one object of a manifest."""
    data: dict[str, Any] = yaml.safe_load(path.read_text())
    return data


def check_built_in(manifest: dict[str, Any], version: str) -> None:
    """Against Kubernetes' own schema, in which no key is unknown.

    Raises:
        kubernetes_validate.ValidationError: the manifest does not fit.
    """
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")
    kubernetes_validate.validate(manifest, version, strict=True)


def rendered(folder: Path) -> list[dict[str, Any]]:
    """What ``kubectl apply -k`` would send."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("needs kubectl, which brings kustomize")
    done = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


@cache
def _kserve_sources() -> dict[str, Path]:
    """The file of each of the models that KServe generates from its Go types, by class."""
    try:
        found = files("kserve") or []
    except PackageNotFoundError:
        pytest.skip("needs kserve, whose models carry the fields of its resources")
    sources = {}
    for file in found:
        if file.match("kserve/models/v*.py"):
            path = Path(str(file.locate()))
            name = re.search(r"^class (\w+)\(", path.read_text(), re.MULTILINE)
            assert name is not None
            sources[name[1]] = path
    return sources


@cache
def _kserve_fields(name: str) -> dict[str, str]:
    """The type of each field, by its name in JSON. Read, not imported: the package's imports are a server's."""
    tables = {}
    for node in ast.walk(ast.parse(_kserve_sources()[name].read_text())):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            target = node.targets[0].id
            if target in ("openapi_types", "attribute_map"):
                tables[target] = ast.literal_eval(node.value)
    return {key: tables["openapi_types"][field] for field, key in tables["attribute_map"].items()}


_PLAIN = {"str": str, "int": int, "bool": bool, "float": float}


def kserve_faults(name: str, data: Any, at: str = "") -> list[str]:
    """What of ``data`` does not fit KServe's model ``name``; types of Kubernetes itself are left to its schema."""
    if name.startswith("list["):
        if not isinstance(data, list):
            return [f"{at}: expected a list"]
        items = [kserve_faults(name[5:-1], item, f"{at}[{i}]") for i, item in enumerate(data)]
        return [fault for faults in items for fault in faults]
    if name == "dict(str, str)":
        pairs = data.items() if isinstance(data, dict) else [(None, None)]
        texts = all(isinstance(key, str) and isinstance(value, str) for key, value in pairs)
        return [] if texts else [f"{at}: expected texts by text"]
    if name in _PLAIN:
        return [] if type(data) is _PLAIN[name] else [f"{at}: expected {name}, got {data!r}"]
    if name not in _kserve_sources():
        return []
    fields = _kserve_fields(name)
    faults = [f"{at}.{key}: no such field" for key in data if key not in fields]
    for key in data.keys() & fields.keys():
        faults += kserve_faults(fields[key], data[key], f"{at}.{key}")
    return faults
