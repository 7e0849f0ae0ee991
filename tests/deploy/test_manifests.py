"""Manifests fit the published schemas, each other, and the server."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from serve.app import options
from serve.config.sources import effective
from serve.tools import probe
from serve.wire import predict_pb2 as wire
from tests.deploy.manifests import (
    BASE,
    COMPONENTS,
    KSERVE,
    KUBERNETES,
    ROOT,
    VERSIONS,
    check_built_in,
    kserve_faults,
    load,
    rendered,
)

BUILT_IN = [
    *sorted(path for path in BASE.glob("*.yaml") if path.name != "kustomization.yaml"),
    COMPONENTS / "autoscaling" / "autoscaler.yaml",
]
KUSTOMIZATIONS = sorted(KUBERNETES.rglob("kustomization.yaml"))
SERVICE = wire.DESCRIPTOR.services_by_name["PredictionService"].full_name
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
TOMLS = sorted(KUBERNETES.rglob("serve.toml"))


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = load(BASE / "deployment.yaml")["spec"]["template"]["spec"]
    return spec


def container() -> dict[str, Any]:
    (only,) = pod()["containers"]
    return dict(only)


def runtime_container() -> dict[str, Any]:
    (only,) = load(KSERVE / "serving-runtime.yaml")["spec"]["containers"]
    return dict(only)


def _id(path: Path) -> str:
    return str(path.relative_to(ROOT / "deploy"))


# Schemas


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", BUILT_IN, ids=_id)
def test_manifest_fits_the_schema(path: Path, version: str) -> None:
    check_built_in(load(path), version)


def test_schema_refuses_a_field_that_is_not_there() -> None:
    manifest = load(BASE / "deployment.yaml")
    manifest["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(Exception, match="readinesProbe"):
        check_built_in(manifest, VERSIONS[-1])


@pytest.mark.parametrize("folder", ["base", "production"])
def test_kustomize_builds_it(folder: str) -> None:
    found = rendered(KUBERNETES / folder)
    kinds = [manifest["kind"] for manifest in found]
    assert {"Deployment", "Service", "ConfigMap", "PodDisruptionBudget", "NetworkPolicy"} <= set(kinds)
    for manifest in found:
        if not manifest["apiVersion"].startswith("monitoring.coreos.com/"):
            check_built_in(manifest, VERSIONS[-1])
    (config,) = [manifest for manifest in found if manifest["kind"] == "ConfigMap"]
    (deployment,) = [manifest for manifest in found if manifest["kind"] == "Deployment"]
    volumes = {volume["name"]: volume for volume in deployment["spec"]["template"]["spec"]["volumes"]}
    # The name has the digest of the settings: other settings roll the pods.
    assert volumes["config"]["configMap"]["name"] == config["metadata"]["name"] != "recsys-serve-config"


def test_tls_component_takes_every_plain_probe_away() -> None:
    (deployment,) = [m for m in rendered(KUBERNETES / "production") if m["kind"] == "Deployment"]
    (only,) = deployment["spec"]["template"]["spec"]["containers"]
    for name in PROBES:
        assert "grpc" not in only[name]
        assert only[name]["exec"]["command"][:3] == ["python", "-m", "serve.probe"]
    assert "/etc/recsys-serve/tls" in {mount["mountPath"] for mount in only["volumeMounts"]}


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=_id)
def test_kustomization_names_files_that_are_there_and_all_of_them(path: Path) -> None:
    data = load(path)
    named = {*data.get("resources", []), *data.get("components", [])}
    named |= {patch["path"] for patch in data.get("patches", [])}
    named |= {file for made in data.get("configMapGenerator", []) for file in made["files"]}
    assert all((path.parent / name).exists() for name in named)
    there = {p.name for p in path.parent.glob("*") if p != path}
    assert there - {"prometheus-adapter-rules.yaml"} == {name for name in named if "/" not in name}


def test_kserve_resources_have_only_fields_of_their_definitions() -> None:
    runtime, service = load(KSERVE / "serving-runtime.yaml"), load(KSERVE / "inference-service.yaml")
    assert kserve_faults("V1alpha1ServingRuntimeSpec", runtime["spec"]) == []
    assert kserve_faults("V1beta1InferenceServiceSpec", service["spec"]) == []
    assert (runtime["apiVersion"], runtime["kind"]) == ("serving.kserve.io/v1alpha1", "ServingRuntime")
    assert (service["apiVersion"], service["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")


def test_kserve_check_finds_what_does_not_fit() -> None:
    spec = load(KSERVE / "inference-service.yaml")["spec"]
    spec["predictor"]["minReplica"] = 2
    spec["predictor"]["model"]["runtime"] = 3
    assert sorted(kserve_faults("V1beta1InferenceServiceSpec", spec)) == [
        ".predictor.minReplica: no such field",
        ".predictor.model.runtime: expected str, got 3",
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_kserve_containers_fit_the_schema_of_pods(version: str) -> None:
    spec = load(KSERVE / "serving-runtime.yaml")["spec"]
    as_pod = {"containers": spec["containers"], "volumes": spec["volumes"]}
    check_built_in({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "made"}, "spec": as_pod}, version)


# The server


@pytest.mark.parametrize(
    "arguments", [container()["args"], runtime_container()["args"]], ids=["base", "kserve"]
)
def test_arguments_are_those_of_the_server(arguments: list[str]) -> None:
    options.parser().parse_args(arguments)


@pytest.mark.parametrize("path", TOMLS, ids=_id)
def test_settings_are_those_of_the_server(path: Path) -> None:
    settings = effective({}, {}, path).settings
    config = settings.server
    ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert (config.port, config.metrics_port) == (ports["grpc"], ports["metrics"])
    assert config.admin is not None
    assert config.admin.port == ports["admin"]
    # Clients see new pods only when connections end.
    assert config.connections.max_connection_age_s > 0
    assert (config.tls is not None) == ("tls" in path.parts)
    mounts = [Path(mount["mountPath"]) for mount in container()["volumeMounts"]]
    assert config.admin.token_file.parent in mounts
    assert settings.source.repository in mounts


def test_settings_with_tls_are_those_without_and_tls() -> None:
    plain = tomllib.loads((BASE / "serve.toml").read_text())
    with_tls = tomllib.loads((COMPONENTS / "tls" / "serve.toml").read_text())
    assert set(with_tls.pop("tls")) >= {"certificate", "key"}
    assert with_tls == plain


@pytest.mark.parametrize("kserve", [False, True], ids=["base", "kserve"])
def test_pods_are_given_the_time_to_drain(kserve: bool) -> None:
    if kserve:
        args = options.parser().parse_args(runtime_container()["args"])
        drain_s, only = args.drain_timeout_s, runtime_container()
        predictor = load(KSERVE / "inference-service.yaml")["spec"]["predictor"]
        grace_s = predictor["terminationGracePeriodSeconds"]
    else:
        drain_s = tomllib.loads((BASE / "serve.toml").read_text())["drain_timeout_s"]
        grace_s, only = pod()["terminationGracePeriodSeconds"], container()
    assert grace_s > only["lifecycle"]["preStop"]["sleep"]["seconds"] + drain_s


@pytest.mark.parametrize("only", [container(), runtime_container()], ids=["base", "kserve"])
def test_probes_ask_three_different_things(only: dict[str, Any]) -> None:
    probes = startup, readiness, liveness = [only[name] for name in PROBES]
    assert startup["grpc"] == readiness["grpc"] == {"port": 8500, "service": SERVICE}
    # A server that drains or loads answers that it does; only one that answers nothing is to be killed.
    args = probe.COMMAND.parse(liveness["exec"]["command"][3:])
    assert (args.address, args.alive, args.ca) == ("127.0.0.1:8500", True, None)
    patience_s = [asked["periodSeconds"] * asked["failureThreshold"] for asked in probes]
    assert patience_s[0] > patience_s[2] > patience_s[1]


def test_probes_with_tls_are_those_without_and_tls() -> None:
    patch = load(COMPONENTS / "tls" / "deployment-patch.yaml")["spec"]["template"]["spec"]
    (only,) = patch["containers"]
    mounts = [mount["mountPath"] for mount in only["volumeMounts"]]
    for name in PROBES:
        args = probe.COMMAND.parse(only[name]["exec"]["command"][3:])
        assert str(args.ca.parent) in mounts
        assert args.timeout_s <= {**container()[name], **only[name]}["timeoutSeconds"]
        assert args.server_name == load(BASE / "service.yaml")["metadata"]["name"]
        assert (args.service, args.alive) == (("", True) if name == "livenessProbe" else (SERVICE, False))


@pytest.mark.parametrize(
    ("pod_context", "only"),
    [(pod()["securityContext"], container()), ({}, runtime_container())],
    ids=["base", "kserve"],
)
def test_pods_hold_no_rights(pod_context: dict[str, Any], only: dict[str, Any]) -> None:
    context = {**pod_context, **only["securityContext"]}
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] > 0
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert {"mountPath": "/tmp", "name": "tmp"} in only["volumeMounts"]


def test_no_service_account_token_is_mounted() -> None:
    assert pod()["automountServiceAccountToken"] is False
    account = load(BASE / "service-account.yaml")
    assert account["automountServiceAccountToken"] is False
    assert account["metadata"]["name"] == pod()["serviceAccountName"]


# Each other


def test_every_selector_finds_the_pods() -> None:
    deployment = load(BASE / "deployment.yaml")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    selectors = [
        deployment["spec"]["selector"]["matchLabels"],
        load(BASE / "service.yaml")["spec"]["selector"],
        load(BASE / "disruption-budget.yaml")["spec"]["selector"]["matchLabels"],
        load(BASE / "network-policy.yaml")["spec"]["podSelector"]["matchLabels"],
        *(rule["labelSelector"]["matchLabels"] for rule in pod()["topologySpreadConstraints"]),
    ]
    assert all(selector.items() <= labels.items() for selector in selectors)
    monitor = load(COMPONENTS / "service-monitor" / "service-monitor.yaml")["spec"]
    service = load(BASE / "service.yaml")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert {end["port"] for end in monitor["endpoints"]} <= {
        port["name"] for port in service["spec"]["ports"]
    }


def test_every_volume_is_there_and_mounted() -> None:
    names = {volume["name"] for volume in pod()["volumes"]}
    assert names == {mount["name"] for mount in container()["volumeMounts"]}


def test_clients_see_every_pod() -> None:
    service = load(BASE / "service.yaml")["spec"]
    assert service["clusterIP"] == "None"
    assert not service.get("publishNotReadyAddresses")
    names = {port["name"] for port in container()["ports"]}
    assert {port["targetPort"] for port in service["ports"]} <= names
    # The admin port is nobody's service.
    assert "admin" not in {port["name"] for port in service["ports"]}


def test_only_labelled_pods_reach_the_admin_port() -> None:
    policy = load(BASE / "network-policy.yaml")["spec"]
    names = {port["name"] for port in container()["ports"]}
    by_port = {port["port"]: rule["from"] for rule in policy["ingress"] for port in rule["ports"]}
    assert set(by_port) == names
    assert all("ports" in rule for rule in policy["ingress"])
    assert by_port["admin"] == [{"podSelector": {"matchLabels": {"recsys-serve/admin": "true"}}}]
    assert "Ingress" in policy["policyTypes"]


def test_autoscaler_reads_a_metric_that_the_server_has_and_the_adapter_offers() -> None:
    autoscaler = load(COMPONENTS / "autoscaling" / "autoscaler.yaml")["spec"]
    deployment = load(BASE / "deployment.yaml")
    assert autoscaler["scaleTargetRef"] == {
        "apiVersion": deployment["apiVersion"],
        "kind": deployment["kind"],
        "name": deployment["metadata"]["name"],
    }
    # The number of pods has one owner.
    assert "replicas" not in deployment["spec"]
    (metric,) = [found["pods"] for found in autoscaler["metrics"] if found["type"] == "Pods"]
    (rule,) = load(COMPONENTS / "autoscaling" / "prometheus-adapter-rules.yaml")["rules"]
    assert rule["name"]["as"] == metric["metric"]["name"] == "recsys_pending_rows"
    assert rule["seriesQuery"].startswith("recsys_pending_rows{")
    assert all(part in rule["metricsQuery"] for part in ("<<.Series>>", "<<.LabelMatchers>>", "<<.GroupBy>>"))
    # A budget of one pod and one pod in all would never let a node be emptied without a gap.
    assert autoscaler["minReplicas"] > load(BASE / "disruption-budget.yaml")["spec"]["maxUnavailable"]


def test_kserve_service_asks_for_what_the_runtime_offers() -> None:
    runtime = load(KSERVE / "serving-runtime.yaml")
    model = load(KSERVE / "inference-service.yaml")["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    formats = [
        {key: given[key] for key in ("name", "version")} for given in runtime["spec"]["supportedModelFormats"]
    ]
    assert model["modelFormat"] in formats
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
    args = options.parser().parse_args(runtime_container()["args"])
    # KServe routes to the first port alone, and puts the artifact where it always puts them.
    assert runtime_container()["ports"][0] == {
        "name": "h2c",
        "containerPort": args.port,
        "protocol": "TCP",
    }
    assert "/mnt/models" in runtime_container()["args"]
    assert runtime["spec"]["annotations"]["prometheus.kserve.io/port"] == str(args.metrics_port)


def test_images_have_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (image,) = load(BASE / "kustomization.yaml")["images"]
    assert image["name"] == container()["image"]
    assert image["newTag"] == version
    assert runtime_container()["image"].endswith(f":{version}")


@pytest.mark.parametrize(
    "path", [BASE / "deployment.yaml", COMPONENTS / "tls" / "deployment-patch.yaml"], ids=_id
)
def test_secrets_can_be_read_by_the_server_and_by_nobody_else(path: Path) -> None:
    volumes = load(path)["spec"]["template"]["spec"]["volumes"]
    modes = [volume["secret"]["defaultMode"] for volume in volumes if "secret" in volume]
    # The files are root's and of the group fsGroup: the server reads them as that group. It refuses wider modes.
    assert modes == [0o440]
    assert pod()["securityContext"]["fsGroup"] == pod()["securityContext"]["runAsGroup"]
