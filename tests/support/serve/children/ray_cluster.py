"""A Ray cluster of two nodes on this machine, our application on it, and what clients see: one JSON line.

In a process of its own: what Ray leaves in a process (threads, warnings, signal handlers) is not the other tests'.

    python tests/support/serve/children/ray_cluster.py ARTIFACT OTHER_ARTIFACT
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

# Before Ray is imported: nothing is reported to anybody.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_DEDUP_LOGS"] = "0"
os.environ["OMP_NUM_THREADS"] = "1"
# Ray kills a proxy or a worker that takes longer to start, and starts it again: a busy machine would never be done.
os.environ["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] = "600"
os.environ["RAY_worker_register_timeout_seconds"] = "600"  # noqa: SIM112 (Ray reads it so)

import grpc
import numpy as np
import ray
from ray import serve as ray_serve
from ray.cluster_utils import Cluster
from ray.serve._private import api
from ray.serve._private import client as serve_client
from ray.serve.config import HTTPOptions, ProxyLocation, gRPCOptions
from ray.serve.schema import ApplicationStatus, ServeDeploySchema

from recsys.artifact.load import LoadedArtifact, load_artifact
from serve.client import PREDICT, Client
from serve.client.errors import PredictError
from serve.ray.app import ADD_SERVICES
from tests.support.serve.messages.cases import Sample, answer, random_sample

# Loopback, but not 127.0.0.1: Ray takes that for this machine's address in the network.
HOST = "127.0.0.2"
NODE = {
    "num_cpus": 1,
    "object_store_memory": 80 << 20,
    "include_dashboard": False,
    "node_ip_address": HOST,
}
NUM_SAMPLES = 60
TOLERANCE = 1e-5
_START_S = 600


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def replicas() -> dict[str, str]:
    """The node of each living replica."""
    actors = ray._private.state.actors().items()
    return {
        actor_id: actor["Address"]["NodeID"]
        for actor_id, actor in actors
        if actor["State"] == "ALIVE" and actor["ActorClassName"].startswith("ServeReplica:")
    }


class Clients:
    """Samples, and what each of the artifacts says of them."""

    def __init__(self, address: str, artifacts: list[LoadedArtifact]) -> None:
        self.address = address
        rng = np.random.default_rng(7)
        signature = artifacts[0].signature
        self.samples = [random_sample(signature, int(rng.integers(1, 6)), rng) for _ in range(NUM_SAMPLES)]
        self.expected = [[answer(artifact, sample) for sample in self.samples] for artifact in artifacts]

    def whose(self, found: dict[str, Any], i: int) -> int:
        """Which artifact gave this answer to sample ``i``; -1 for none of them."""
        for which, expected in enumerate(self.expected):
            if all(np.allclose(found[name], expected[i][name], atol=TOLERANCE) for name in expected[i]):
                return which
        return -1

    def ask(self, client: Client, i: int) -> int:
        sample: Sample = self.samples[i % NUM_SAMPLES]
        return self.whose(client.predict(sample.dense, sample.sparse, sample.weights), i % NUM_SAMPLES)

    def ask_all(self) -> list[int]:
        """Whose each answer was, of calls that come together."""
        with Client(self.address, timeout_s=60) as client, ThreadPoolExecutor(16) as pool:
            return list(pool.map(lambda i: self.ask(client, i), range(NUM_SAMPLES)))

    def stream(self) -> dict[str, int]:
        """Whose each answer of a stream was, by the request's ID."""
        requests = [sample.request() for sample in self.samples[:8]]
        for i, request in enumerate(requests):
            request.request_id = str(i)
        with Client(self.address, timeout_s=60) as client:
            return {
                name: self.whose(found, int(name)) if isinstance(found, dict) else -1
                for name, found in client.stream(requests, timeout_s=60)
            }


def refusals(clients: Clients) -> dict[str, list[str]]:
    """What wrong requests are told."""
    sample = clients.samples[0]
    told = {}
    wrong = {name: [[10**6]] * sample.num_rows for name in sample.sparse}
    ones = {name: [[1.0]] * sample.num_rows for name in sample.weights}
    with (
        Client(clients.address, timeout_s=60) as client,
        Client(clients.address, timeout_s=60, model="x") as other,
    ):
        for name, ask in {
            "id": lambda: client.predict(sample.dense, wrong, ones),
            "model": lambda: other.predict(sample.dense, sample.sparse, sample.weights),
        }.items():
            try:
                ask()
            except PredictError as error:
                told[name] = [type(error).__name__, str(error)]
    with grpc.insecure_channel(clients.address) as channel:
        try:
            channel.unary_unary(PREDICT)(b"\xff\xff\xff", timeout=60)
        except grpc.RpcError as error:
            told["bytes"] = [error.code().name, error.details()]
    return told


def deploy(path: str) -> None:
    """Do what ``serve deploy`` does with docs/operate/ray.md's file: of a new artifact only ``user_config`` changes."""
    application = {
        "name": "recsys",
        "import_path": "serve.ray_app:app",
        # Autoscaled, between two and two.
        "args": {"artifact": "overruled below", "min_replicas": 2, "max_replicas": 2},
        "deployments": [{"name": "recsys", "user_config": {"source.artifact": path}}],
    }
    client = ray_serve.context._get_global_client()
    # With _blocking, Ray gives up after a minute; and an application that is asked for again begins to start again.
    client.deploy_apps(ServeDeploySchema(applications=[application]))
    while (status := client.get_serve_status("recsys").app_status).status != ApplicationStatus.RUNNING:
        if status.status == ApplicationStatus.DEPLOY_FAILED:
            raise RuntimeError(status.message)
        time.sleep(0.1)
    client.wait_for_proxies_serving(wait_for_applications_running=True)


def update(clients: Clients, path: str) -> dict[str, Any]:
    """Another artifact, while requests keep coming."""
    done = threading.Event()
    seen: list[int] = []
    failed: list[str] = []

    def keep_asking() -> None:
        with Client(clients.address, timeout_s=60) as client:
            while not done.is_set():
                try:
                    seen.append(clients.ask(client, len(seen)))
                except PredictError as error:
                    failed.append(str(error))

    asking = threading.Thread(target=keep_asking)
    asking.start()
    try:
        deploy(path)
    finally:
        done.set()
        asking.join()
    return {"seen": sorted(set(seen)), "failed": failed}


def over_http(port: int) -> dict[str, list[Any]]:
    """What the HTTP port answers: the status and the JSON of it."""
    found = {}
    for method, path in (("GET", "/"), ("GET", "/v2/models"), ("POST", "/")):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request(method, path, body=b"{}" if method == "POST" else None)
        response = connection.getresponse()
        body = response.read().decode()
        is_json = response.headers.get_content_type() == "application/json"
        found[f"{method} {path}"] = [response.status, json.loads(body) if is_json else body]
        connection.close()
    return found


def errors(folder: str) -> list[str]:
    """What Ray Serve and the replicas have logged as errors."""
    logs = Path(folder).glob("session_*/logs/serve/*.log")
    lines = (line for log in logs for line in log.read_text(errors="replace").splitlines())
    return [line for line in lines if " ERROR " in line]


def main(paths: list[str]) -> dict[str, Any]:
    clients = Clients(f"127.0.0.1:{free_port()}", [load_artifact(Path(path)) for path in paths])
    found: dict[str, Any] = {}
    http_port = free_port()
    # A short path: sockets lie in it, whose paths may have 107 characters.
    folder = tempfile.mkdtemp(prefix="ray-")
    # Ray writes the cluster's address into its default folder, whatever temp_dir says, and does not make that folder.
    Path(tempfile.gettempdir(), "ray").mkdir(exist_ok=True)
    cluster = Cluster(
        initialize_head=True, shutdown_at_exit=True, head_node_args={**NODE, "temp_dir": folder}
    )
    try:
        cluster.add_node(**{key: value for key, value in NODE.items() if key != "include_dashboard"})
        ray.init(
            address=cluster.address,
            _node_ip_address=HOST,
            log_to_driver=False,
            logging_level=logging.WARNING,
        )
        # Ray gives its proxy a minute, which a busy machine needs to start Python.
        for module in (api, serve_client):
            vars(module)["HTTP_PROXY_TIMEOUT"] = _START_S
        ray_serve.start(
            proxy_location=ProxyLocation.HeadOnly,
            http_options=HTTPOptions(host="127.0.0.1", port=http_port),
            grpc_options=gRPCOptions(
                port=int(clients.address.rpartition(":")[2]),
                grpc_servicer_functions=[ADD_SERVICES],
                request_timeout_s=60,
            ),
        )
        deploy(paths[0])
        found["replicas"] = replicas()
        found["http"] = over_http(http_port)
        found["errors"] = errors(folder)
        found["answers"] = clients.ask_all()
        with Client(clients.address, timeout_s=60) as client:
            found["model"] = client.metadata().model
        found["stream"] = clients.stream()
        found["refusals"] = refusals(clients)
        found["update"] = update(clients, paths[1])
        found["answers_after"] = clients.ask_all()
        found["replicas_after"] = replicas()
    finally:
        ray_serve.shutdown()
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])), flush=True)
