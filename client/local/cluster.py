"""Local cluster: a nameserver and the nodes of its broker groups as processes, with data in a folder.

Alternatively a folder has only further broker groups of a cluster that already runs.
Owns: the folder's lock, the flags of every process, the order of start and stop. The composition of the
cluster is in `plan.py`. Must not: print (`ledgermq up` and `ledgermq demo` do).
Invariant: a folder belongs to one running cluster (lock). Its nodes keep their names. Ports change only when
they are taken, and are reserved as soon as they are chosen.

Broker groups of other folders that belong to the cluster are known only to themselves, so the start waits for
them to register.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final

import grpc

from ledgermq.proto import nameserver_pb2, nameserver_pb2_grpc, route_pb2

from ..errors import LedgerMQError, MissingExtraError, UsageError
from .plan import LocalPlan, joining_plan, new_plan, read_plan, with_free_ports, with_more_broker_groups
from .ports import NodePorts, PortReservations
from .processes import ServerProcess, require_running, stop_all

#: Running nodes look for a returned nameserver at least every 2 s, and register.
REGISTERED_WITHIN_S: Final = 4.0


def broker_groups_there(
    nameserver: str, names: Collection[str], nodes: Collection[str], seconds: float = REGISTERED_WITHIN_S
) -> dict[str, list[str]]:
    """Return broker groups (with their nodes) that have one of these names, or a node with one of them.

    They get `seconds` to register at a nameserver that was just started. The first match ends the wait.
    """
    end = time.monotonic() + seconds
    with grpc.insecure_channel(nameserver) as channel:
        stub = nameserver_pb2_grpc.NameServerServiceStub(channel)
        while (rest := end - time.monotonic()) > 0:
            request = nameserver_pb2.WatchRoutesRequest()
            with contextlib.suppress(grpc.RpcError):  # timeout, or the nameserver is still starting
                for listed in stub.WatchRoutes(request, timeout=rest, wait_for_ready=True):
                    if clashes := _clashes(listed.groups, names, nodes):
                        return clashes
    return {}


def _clashes(
    views: Iterable[route_pb2.GroupRoute], names: Collection[str], nodes: Collection[str]
) -> dict[str, list[str]]:
    found = {view.group: [node.node_id for node in view.nodes] for view in views}
    return {
        group: there
        for group, there in found.items()
        if group in names or any(node in nodes for node in there)
    }


_READY_SECONDS = 60.0
_POLL_SECONDS = 0.02
_SAY_SECONDS = 5.0  # interval of reports about a node that is not ready


class LocalCluster:
    """Call `prepare`, then `start`; always end with `stop`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan: LocalPlan | None = None
        self.nameserver: ServerProcess | None = None
        self.nodes: dict[str, ServerProcess] = {}
        #: Cluster that a new folder joins: its nameserver, and the broker groups and nodes known to it.
        self.joins: tuple[str, frozenset[str], frozenset[str]] | None = None
        self.added: tuple[str, ...] = ()  # broker groups added to a known folder
        self._lock: IO[str] | None = None
        self._reserved = PortReservations()

    def prepare(
        self,
        wanted: int | None,
        groups: int | None = None,
        *,
        free_ports_only: bool = False,
        default: int = 3,
        replication: str | None = None,
        rejoin: str = "",
    ) -> LocalPlan:
        """Lock the folder; read its plan, or make one with `groups` broker groups of `wanted` nodes each.

        If the folder has fewer broker groups, more are added. `rejoin` must be one of its nodes.
        Raises: UsageError, MissingExtraError.
        """
        require_server()
        if rejoin:
            self._check_rejoin(rejoin, (wanted or default) * (groups or 1))
        self._make_folder()
        self._take_lock()
        path = self.folder / "cluster.json"
        known = read_plan(path)
        if known is None and self.joins is not None:
            plan = joining_plan(*self.joins, wanted or default, self._reserved, groups or 1)
            self.plan = replace(plan, replication=replication or "quorum")
        elif known is None:
            plan = new_plan(wanted or default, self._reserved, groups or 1, free_ports_only=free_ports_only)
            self.plan = replace(plan, replication=replication or "quorum")
        else:
            self._check_shape(known, wanted, groups, replication)
            self._check_cluster(known, groups)
            self.plan = with_more_broker_groups(
                with_free_ports(known, self._reserved), self._reserved, groups
            )
            self.plan = replace(self.plan, replication=replication or known.replication)
            self.added = tuple(name for name in self.plan.groups if name not in known.groups)
        if self.plan != known and not self.added:
            self.keep_plan()
        self._make_processes(self.plan)
        return self.plan

    def keep_plan(self) -> None:
        """Store the plan. For `added` broker groups, `start` checks the names first."""
        assert self.plan is not None, "prepare() comes first"
        path = self.folder / "cluster.json"
        fresh = path.with_suffix(".new")  # renamed, so that a plan is never partial
        fresh.write_text(self.plan.to_json())
        fresh.replace(path)

    def _check_rejoin(self, name: str, count: int) -> None:
        """Refuse the return of a node that never existed, before anything is made.

        `count`: nodes of a new cluster.

        Raises: UsageError.
        """
        known = read_plan(self.folder / "cluster.json")
        if known is None:
            raise UsageError(
                f'there is no node "{name}" in {self.folder}, which holds no cluster',
                f"A new one would have the nodes {', '.join(f'n{number + 1}' for number in range(count))}. "
                "Nothing was made",
                "Check --data, or start a new cluster without --rejoin",
            )
        if name not in known.nodes:
            raise UsageError(
                f'there is no node "{name}" in {self.folder}',
                f"The nodes are {', '.join(known.nodes)}. Nothing was changed",
                "",
            )

    def _check_shape(
        self, known: LocalPlan, wanted: int | None, groups: int | None, replication: str | None
    ) -> None:
        """Refuse to start a folder in a different shape. Raises: UsageError."""
        as_it_is = f"Start it as it is: ledgermq up --data {self.folder}"
        if wanted not in (None, known.nodes_per_group):
            what = "a cluster" if len(known.groups) == 1 else f"{len(known.groups)} broker groups"
            raise UsageError(
                f"{self.folder} holds {what} of {known.nodes_per_group} nodes, not of {wanted}",
                "The number of nodes of a broker group does not change by a restart. Nothing was changed",
                as_it_is,
            )
        if groups is not None and groups < len(known.groups):
            raise UsageError(
                f"{self.folder} holds {len(known.groups)} broker groups ({', '.join(known.groups)}), "
                f"not {groups}",
                "Each has messages of its own, which could not be read while it is left out. "
                "Nothing was changed",
                as_it_is,
            )
        if replication is not None and (replication == "quorum") != (known.replication == "quorum"):
            raise UsageError(
                f"{self.folder} holds broker groups with replication {known.replication}, not {replication}",
                "The choice between a majority and a master is fixed when a broker group is made. "
                "Nothing was changed",
                as_it_is,
            )

        if (replication or known.replication) == "sync_master" and known.nodes_per_group == 1:
            raise UsageError(
                f"{self.folder} holds broker groups of one node, and a sync_master needs at least one slave",
                "Nothing was changed",
                f"Start it without: ledgermq up --data {self.folder} --replication async_master",
            )

    def _check_cluster(self, known: LocalPlan, groups: int | None) -> None:
        """Refuse to move a folder to another cluster, or to add to a joined folder. Raises: UsageError."""
        if self.joins is not None and self.joins[0] != known.joins:
            whose = f"the cluster at {known.joins}" if known.joins else "a cluster of their own"
            raise UsageError(
                f"the broker groups in {self.folder} belong to {whose}, not to that at {self.joins[0]}",
                "Nothing was changed",
                "Use another folder: ledgermq up --data OTHER --join HOST:PORT",
            )
        if known.joins and groups is not None and groups > len(known.groups):
            raise UsageError(
                f"{self.folder} holds {', '.join(known.groups)} of the cluster at {known.joins}; "
                "a joined folder gets no more",
                "Nothing was changed",
                f"Start them in another folder: ledgermq up --data OTHER --join {known.joins}",
            )

    def start(
        self,
        *,
        rejoin: str = "",
        on_ready: Callable[[str], None] = lambda name: None,
        on_wait: Callable[[str, str], None] = lambda name, doing: None,
    ) -> None:
        """Start all processes; return when every node is ready.

        `on_ready(name)` is called for each node, and `on_wait(name, doing)` when one takes long.
        Raises: ProcessEndedError.
        """
        assert self.plan is not None, "prepare() comes first"
        if self.nameserver is not None:
            self.nameserver.start()
        if self.added:
            self.check_added()
            self.keep_plan()
        for name, process in self.nodes.items():
            process.start(*(["--rejoin"] if name == rejoin else []))
        for name in self.nodes:
            self.wait_ready(name, on_wait=on_wait)
            on_ready(name)

    def check_added(self) -> None:
        """Refuse to add broker groups with names of others that joined the cluster. Its nameserver must run.

        Raises: UsageError.
        """
        assert self.plan is not None, "prepare() comes first"
        plan = self.plan
        nodes = [node for group in self.added for node in plan.groups[group]]
        if clashes := broker_groups_there(plan.nameserver, self.added, nodes):
            named = ", ".join(f"{group} ({', '.join(there)})" for group, there in sorted(clashes.items()))
            raise UsageError(
                f"{named} belongs to this cluster already, from another folder: "
                f"{self.folder} cannot get {', '.join(self.added)}",
                "Nothing was made",
                f"Start the cluster as it is (ledgermq up --data {self.folder}), and let more broker groups "
                f"join it from a folder of their own: ledgermq up --data OTHER --join {plan.nameserver}",
            )

    def wait_ready(
        self,
        name: str,
        seconds: float = _READY_SECONDS,
        on_wait: Callable[[str, str], None] = lambda name, doing: None,
    ) -> None:
        """Wait for status 200 of the node's /readyz. `on_wait(name, doing)` is called when it takes long.

        A node that verifies or repairs its log may take any time.
        Raises: ProcessEndedError (of any process: without the others a node is not ready), LedgerMQError
        (timeout).
        """
        begin = time.monotonic()
        end, said_at = begin + seconds, begin
        while doing := self.not_ready(name):
            now = time.monotonic()
            require_running(self._processes())
            if doing.startswith("starting: "):
                end = now + seconds
            if now > end:
                log = self.nodes[name]
                raise LedgerMQError(
                    f"{name} is not ready after {now - begin:.0f} s: {doing}. "
                    f"Its last lines:\n{log.log_tail()}\n",
                    "",
                    f"The whole log: {log.log_path}",
                )
            if now - said_at > _SAY_SECONDS:
                said_at = now
                on_wait(name, doing)
            time.sleep(_POLL_SECONDS)

    def not_ready(self, name: str) -> str:
        """Return what the node still does, as its /readyz says; "": it has caught up and knows a leader."""
        assert self.plan is not None
        url = f"http://127.0.0.1:{self.plan.nodes[name].http}/readyz"
        try:
            with urllib.request.urlopen(url, timeout=2):
                return ""
        except urllib.error.HTTPError as error:
            with error:
                return error.read(1000).decode(errors="replace").strip() or "it does not say why"
        except OSError:
            return "it does not answer yet"

    def _processes(self) -> list[ServerProcess]:
        """Return all processes; the nameserver first: without it nothing else works."""
        return [*([self.nameserver] if self.nameserver is not None else []), *self.nodes.values()]

    def stop(self) -> list[str]:
        """End all processes, nodes first, and release the folder. Return those that had to be killed."""
        killed = stop_all(self.nodes.values())
        if self.nameserver is not None:
            killed += stop_all([self.nameserver])
        self._reserved.release()
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        return killed

    def log_address(self, name: str) -> str:
        """Return host:port of a node's LogService and AdminService."""
        assert self.plan is not None
        return f"127.0.0.1:{self.plan.nodes[name].log}"

    def _make_folder(self) -> None:
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            why = "it is a file" if self.folder.is_file() else error.strerror
            raise UsageError(
                f"the data folder {self.folder} cannot be made: {why}",
                "",
                "Point --data to a folder that can be written",
            ) from error

    def _take_lock(self) -> None:
        path = self.folder / "up.lock"
        try:
            lock = path.open("a+")
        except OSError as error:
            raise UsageError(
                f"the data folder {self.folder} cannot be written: {error.strerror}",
                "",
                "Point --data to a folder that can be written",
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            lock.close()
            raise UsageError(
                f"{self.folder} is in use by another ledgermq (process {owner})",
                "One cluster per folder. Nothing was changed",
                "Stop it, or use another folder: ledgermq up --data OTHER",
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock

    def _make_processes(self, plan: LocalPlan) -> None:
        logs = self.folder / "logs"
        if not plan.joins:
            arguments = ["-m", "ledgermq.nameserver", "--bind", plan.nameserver]
            self.nameserver = ServerProcess("nameserver", arguments, logs / "nameserver.log")
        for group, nodes in plan.groups.items():
            for name, ports in nodes.items():
                flags = broker_flags(group, name, ports, plan, self.folder / name)
                self.nodes[name] = ServerProcess(
                    name, ["-m", "ledgermq.broker", *flags], logs / f"{name}.log"
                )


def broker_flags(group: str, name: str, ports: NodePorts, plan: LocalPlan, data: Path) -> list[str]:
    """Return the flags of one node: its complete configuration, without a file."""
    peers = ",".join(f"{peer}=127.0.0.1:{each.raft}" for peer, each in plan.groups[group].items())
    messaging, log = (f"127.0.0.1:{port}" for port in (ports.messaging, ports.log))
    flags: dict[str, Any] = {
        "group": group,
        "node": name,
        "data": data,
        "peers": peers,
        "raft-bind": f"127.0.0.1:{ports.raft}",
        "http-bind": f"127.0.0.1:{ports.http}",
        "listener": f"name=default,messaging_bind={messaging},log_bind={log}",
        "nameservers": plan.nameserver,
        "segment-size": plan.segment_size,
        "queues-per-topic": plan.queues_per_topic,
        "auto-create-topics": "true",
    }
    if plan.replication != "quorum":
        flags |= {"replication": plan.replication, "master": next(iter(plan.groups[group]))}
    return [part for key, value in flags.items() for part in (f"--{key}", str(value))]


def require_server(what: str = "a broker") -> None:
    """Check that the server part is installed. Raises: MissingExtraError (a client-only installation)."""
    for module in ("uvloop", "pydantic", "prometheus_client"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(what, "server", module)
