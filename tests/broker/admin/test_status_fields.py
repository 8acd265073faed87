"""A field of a node's status keeps one name from the node to `ledgermq cluster status`."""

from __future__ import annotations

from dataclasses import fields

from ledgermq.client.admin.status_report import NodeRow
from ledgermq.proto.admin_pb2 import GetStatusResponse, NodeStatus
from ledgermq.raft.node_status import GAUGES, PeerStatus, RaftStatus

#: Fields that the broker does not report, or reports under another name.
NOT_TOLD = {
    RaftStatus: {"group_id", "former_group_ids", "voters_reachable", "peers", "uncommitted_bytes"},
    PeerStatus: {"address", "connected", "catching_up", "repairing", "refused_lately", "feature_level"},
}
#: What the client judges, or takes out of `addresses` and `log_check`.
JUDGED = {
    "address",
    "checked_bytes",
    "checked_passes",
    "damage_found",
    "damage_last",
    "damage_repaired",
    "heard_by_leader",
    "store_used_ratio",
}


def test_every_field_of_a_status_is_told_under_its_name() -> None:
    told = set(GetStatusResponse.DESCRIPTOR.fields_by_name) | set(NodeStatus.DESCRIPTOR.fields_by_name)
    for status, kept in NOT_TOLD.items():
        assert {field.name for field in fields(status)} - told == kept


def test_every_field_of_a_row_comes_from_an_answer_or_is_judged() -> None:
    told = set(GetStatusResponse.DESCRIPTOR.fields_by_name) | set(NodeStatus.DESCRIPTOR.fields_by_name)
    assert {field.name for field in fields(NodeRow)} - told == JUDGED


def test_metrics_are_declared_at_fields() -> None:
    assert GAUGES["timer_lateness_ms"].name == "ledgermq_raft_timer_lateness_seconds"
    assert GAUGES["timer_lateness_ms"].scale == 1e-3
