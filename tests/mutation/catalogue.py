"""Mutants of the source, by the promise that they break."""

from __future__ import annotations

from typing import Final

from .mutant import SourceMutant

_CORE = (
    "raft/core/test_read_rounds.py",
    "raft/core/test_core_paper.py", "raft/core/test_core_bugs.py",
    "raft/core/test_core_edges.py",
    "raft/core/test_core_persistence.py",
    "raft/core/test_progress.py", "raft/core/test_quiet_ticks.py", "raft/core/test_quorum.py",
)  # fmt: skip
_RECOVERY = ("raft/folder/test_recovery_judgement.py",)
_WIRE = ("raft/log/test_wire_batch.py",)
_LEASES = (
    "broker/state/test_leases.py",
    "broker/state/test_state.py", "broker/leader/test_leader_view.py",
    "broker/state/test_fifo.py",
    "broker/official/test_receive.py",
)  # fmt: skip
_RETENTION = (
    "broker/retention/test_retention_policy.py",
    "broker/retention/test_retention.py",
    "broker/retention/test_topic_retention.py",
)

_DEDUPLICATION = (
    SourceMutant(
        "TakesMessagesUntilADrainIsApplied", "A leader takes messages behind the drain that it has proposed.",
        "broker/leader/leader_view.py",
        "return not self._closings and self._state.mode is BrokerGroupMode.ACTIVE",
        "return self._state.mode is BrokerGroupMode.ACTIVE",
        ("broker/admin/test_group_mode.py", "broker/leader/test_leader_view.py"),
    ),
    SourceMutant(
        "UndecidedDuplicateIsConfirmed",
        "A duplicate of a message that is not decided yet is confirmed at once.",
        "broker/leader/works.py",
        "            self._undecided += 1\n            flight.when_decided",
        "            flight.when_decided",
        ("broker/leader/test_produce.py", "broker/official/test_messaging_send.py"),
    ),
    SourceMutant(
        "DuplicateSectionDoesNotWait", "A repeated section of a stream does not wait for its first copy.",
        "broker/leader/works.py",
        "if admission.verdict is Verdict.PENDING and admission.turn is not None:",
        "if False:",
        ("broker/leader/test_produce.py", "broker/native/test_log_service.py"),
    ),
    SourceMutant(
        "DuplicateOutlivesItsLostCopy", "A duplicate succeeds although the turn of its first copy was lost.",
        "broker/leader/works.py", "            self.fail(error)\n            return", "            pass",
        ("broker/leader/test_produce.py", "broker/official/test_messaging_send.py"),
    ),
    SourceMutant(
        "MessageIdsForgottenEarly",
        "A generation of ids goes when its first id is old, not its last: up to 15 s early.",
        "broker/state/dedup.py",
        "self.generations[0].last_timestamp < before:",
        "self.generations[0].first_timestamp < before:",
        ("broker/state/test_dedup.py",),
    ),
    SourceMutant(
        "NewestGenerationHasTheFirstTime", "Ids that join a generation do not make it live longer.",
        "broker/state/dedup.py", "        generation.last_timestamp = now\n", "",
        ("broker/state/test_dedup.py",),
    ),
    SourceMutant(
        "ShorterWindowOfIds", "The leader proposes to forget ids after one minute instead of two.",
        "broker/leader/leader_view.py",
        "MESSAGE_ID_WINDOW_MS: Final = 120_000",
        "MESSAGE_ID_WINDOW_MS: Final = 60_000",
        ("broker/state/test_dedup.py", "broker/leader/test_leader_view.py"),
    ),
    SourceMutant(
        "LastBatchOnly", "Of a stream only the newest 63 results are kept.",
        "broker/state/dedup.py",
        "if len(kept) >= KEPT_BATCHES * _BATCH.size:",
        "if len(kept) >= (KEPT_BATCHES - 1) * _BATCH.size:",
        ("broker/state/test_dedup.py",),
    ),
    SourceMutant(
        "OtherCountIsTheSameBatch",
        "A batch of other length at a known sequence is taken for the one that was stored.",
        "broker/state/dedup.py", "return offset if size == count else None", "return offset",
        ("broker/state/test_dedup.py", "broker/leader/test_leader_view.py"),
    ),
    SourceMutant(
        "ResultsSurviveANewEpoch", "Results of the epoch before are kept for a new epoch of the producer.",
        "broker/state/dedup.py", 'kept = self.batches if epoch == self.epoch else b""', "kept = self.batches",
        ("broker/state/test_dedup.py", "broker/leader/test_leader_view.py"),
    ),
    SourceMutant(
        "IdsOfOtherTopics", "The same message id in another topic is taken for a duplicate.",
        "broker/state/dedup.py",
        'return topic_id.to_bytes(4, "little") + message_id',
        "return bytes(4) + message_id",
        ("broker/state/test_dedup.py", "broker/leader/test_leader_view.py",
        "broker/official/test_messaging_send.py"),
    ),
    SourceMutant(
        "SnapshotSharesTheNewestGeneration",
        "A checkpoint under way sees ids that are stored after its index.",
        "broker/state/dedup.py",
        "newest.last_timestamp, dict(newest.places))",
        "newest.last_timestamp, newest.places)",
        ("broker/state/test_dedup.py", "broker/checkpoint/test_checkpoint.py"),
    ),
    SourceMutant(
        "StaleEpochIsTaken", "A producer of an older epoch (a zombie) may go on.",
        "broker/leader/leader_view.py",
        "            return Admission(Verdict.STALE_EPOCH)\n",
        "            pass\n",
        ("broker/leader/test_leader_view.py", "broker/native/test_log_service.py"),
    ),
    SourceMutant(
        "GapIsTaken", "A batch behind a missing one is stored.",
        "broker/leader/leader_view.py",
        "        if header.base_sequence == expected:",
        "        if header.base_sequence >= expected:",
        ("broker/leader/test_leader_view.py", "broker/native/test_log_service.py"),
    ),
    SourceMutant(
        "AbandonedTurnKeepsItsOffsets",
        "Queue offsets of an entry that was not proposed are left out for ever.",
        "broker/leader/leader_view.py", "            view._next_offsets[key] -= count", "            pass",
        ("broker/leader/test_leader_view.py", "broker/leader/test_produce.py"),
    ),
    SourceMutant(
        "DrainForgetsDuplicates", "While a broker group is drained, a retry of a stored batch is refused.",
        "broker/leader/leader_view.py",
        "    if admission.verdict is Verdict.ACCEPTED or behind_a_gap:",
        "    if True:",
        ("broker/admin/test_group_mode.py", "broker/leader/test_leader_view.py"),
    ),
)  # fmt: skip

_READS = (
    SourceMutant(
        "AnswersOfTheRoundBefore", "Answers to the heartbeat round before confirm a read.",
        "raft/core/read_rounds.py",
        "if self.asking and number == self.number:",
        "if self.asking and number >= self.number - 1:",
        _CORE,
    ),
    SourceMutant(
        "ReadJoinsARunningRound", "A read that is asked during a round is answered by it.",
        "raft/core/read_rounds.py",
        "done, self.asking = self.asking, []",
        "done, self.asking, self.waiting = [*self.asking, *self.waiting], [], []",
        _CORE,
    ),
    SourceMutant(
        "AcksOfTheRoundBefore", "A new round begins with the confirmations of the last one.",
        "raft/core/read_rounds.py", "        self.acks = {self_id}", "        self.acks |= {self_id}",
        _CORE,
    ),
    SourceMutant(
        "ReadBeforeTheNoop", "A new leader answers reads before its no-op is committed.",
        "raft/core/leader.py",
        "if not reads.may_start() or state.commit_index < leading.noop_index:",
        "if not reads.may_start():",
        _CORE,
    ),
    SourceMutant(
        "WaitingReadsOutliveTheLead", "Reads that wait are not aborted when the lead is lost.",
        "raft/core/read_rounds.py", "return [*self.asking, *self.waiting]", "return [*self.asking]",
        _CORE,
    ),
    SourceMutant(
        "LearnerConfirmsTheLead", "Check-quorum counts learners.",
        "raft/core/leader.py",
        "if follower.contact_ticks < state.shortest_timeout and not follower.is_learner:",
        "if follower.contact_ticks < state.shortest_timeout:",
        _CORE,
    ),
    SourceMutant(
        "LearnerCommits", "Copies of learners count for the commit index.",
        "raft/core/commit_rule.py",
        "for f in leading.followers.values() if not f.is_learner}",
        "for f in leading.followers.values()}",
        _CORE,
    ),
)  # fmt: skip

_CHAINS = (
    SourceMutant(
        "ReceivedEntriesNeedNotChain", "Entries from a peer need not continue each other by checksum.",
        "raft/log/wire_batch.py",
        "if header.physical_offset != before.end or header.prev_crc != before.crc:",
        "if header.physical_offset != before.end:",
        _WIRE,
    ),
    SourceMutant(
        "ReceivedEntriesMayLeaveAHole", "Entries from a peer may leave bytes out between each other.",
        "raft/log/wire_batch.py",
        "if header.physical_offset != before.end or header.prev_crc != before.crc:",
        "if header.prev_crc != before.crc:",
        _WIRE,
    ),
    SourceMutant(
        "ReceivedTermsGoBack", "Entries from a peer may go back in term.",
        "raft/log/wire_batch.py",
        "if header.term < before.term or header.timestamp < before.timestamp:",
        "if header.timestamp < before.timestamp:",
        _WIRE,
    ),
    SourceMutant(
        "ReceivedTimeGoesBack", "Entries from a peer may go back in log time.",
        "raft/log/wire_batch.py",
        "if header.term < before.term or header.timestamp < before.timestamp:",
        "if header.term < before.term:",
        _WIRE,
    ),
    SourceMutant(
        "ReceivedIndexJumps", "Entries from a peer may leave an index out.",
        "raft/log/wire_batch.py",
        "if header.index != before.index + step:",
        "if header.index < before.index + step:",
        _WIRE,
    ),
    SourceMutant(
        "FillerOfAnyLength", "A filler from a peer need not close its segment.",
        "raft/log/wire_batch.py", "        if header.size != room:", "        if header.size > room:",
        _WIRE,
    ),
    SourceMutant(
        "ScanIgnoresTheChain", "A scan of a segment believes an entry that continues another one.",
        "raft/log/segment_scan.py",
        "if header.physical_offset != offset or header.prev_crc != before.crc:",
        "if header.physical_offset != offset:",
        _RECOVERY,
    ),
)  # fmt: skip

_RECOVERING = (
    SourceMutant(
        "ValidEntriesInTheLastTurnAreCut",
        "Valid entries behind damage, behind the end of the last flush turn, are cut off.",
        "raft/folder/recovery.py",
        "search_from = latest.end - start if stop.marks.start == start else stop.position + 1",
        "search_from = self._segment_size",
        _RECOVERY,
    ),
    SourceMutant(
        "UnreadableMarksAreTorn",
        "With both flush marks unreadable, valid entries behind damage are cut off.",
        "raft/folder/recovery.py",
        "        elif start in stop.marks.unreadable:\n"
        "            search_from = stop.position + 1\n        else:",
        "        else:",
        _RECOVERY,
    ),
    SourceMutant(
        "DamageBelowTheTurnIsTorn", "Damage in front of the last flush turn is taken for a torn tail.",
        "raft/folder/recovery.py", "        if offset < latest.start:\n", "        if False:\n",
        _RECOVERY,
    ),
    SourceMutant(
        "FloorIsNotChecked", "A log that ends below what was acknowledged is believed.",
        "raft/folder/recovery.py", "        if end.index < floor:\n", "        if False:\n",
        _RECOVERY,
    ),
    SourceMutant(
        "GapBetweenSegmentsIsTorn", "Entries in a later segment do not make a gap damage.",
        "raft/folder/recovery.py",
        '            raise self._stopped(stop, f"{stop.reason}; valid entries follow in the next file", '
        "later + 1)",
        "            return",
        _RECOVERY,
    ),
    SourceMutant(
        "IndexBelievedAfterACrash", "After a crash an index file above the floor is believed.",
        "raft/folder/recovery.py",
        "if not self._state.clean_stop and segment.last_index > self._state.floor_index:", "if False:",
        _RECOVERY,
    ),
    SourceMutant(
        "InterruptedRepairIsForgotten", "A log that an interrupted repair left short is taken for whole.",
        "raft/folder/recovery.py",
        "if note is not None and not note.is_reached(offset, self._end(stop.segments).index):", "if False:",
        _RECOVERY,
    ),
)  # fmt: skip

_LEASED = (
    SourceMutant(
        "LeaseLivesAtItsDeadline", "A lease has not ended yet at the very time of its deadline.",
        "broker/state/consumption.py",
        'rows: np.ndarray = self.leases[(self.leases["deadline"] <= now)',
        'rows: np.ndarray = self.leases[(self.leases["deadline"] < now)',
        _LEASES,
    ),
    SourceMutant(
        "LiveLeaseIsGrantedAgain", "A grant takes leases that have not ended.",
        "broker/state/consumption.py", "places = places[found & ended]", "places = places[found]",
        _LEASES,
    ),
    SourceMutant(
        "AttemptIsNotCounted", "A delivery does not count as an attempt.",
        "broker/state/consumption.py",
        'leases["attempt"][touched] += 1',
        'leases["attempt"][touched] = np.maximum(leases["attempt"][touched], 1)',
        _LEASES,
    ),
    SourceMutant(
        "LateAcknowledgementCounts", "An acknowledgement after the end of the lease is taken.",
        "broker/state/consumption.py",
        'accepted &= ~found | (rows["deadline"] > now) | (rows["flags"] & ACKED != 0)', "pass",
        _LEASES,
    ),
    SourceMutant(
        "OldHandleAcknowledges", "The handle of an earlier delivery acknowledges.",
        "broker/state/consumption.py",
        'current = found & (self.leases["lease_id"][places] == lease_ids) if len(self.leases) else found',
        "current = found",
        _LEASES,
    ),
    SourceMutant(
        "ReleaseKeepsTheAttempt", "A lease whose message never left counts as an attempt.",
        "broker/state/consumption.py",
        '        leases["attempt"][touched] -= np.minimum(leases["attempt"][touched], 1)\n', "",
        _LEASES,
    ),
    SourceMutant(
        "ReleaseKeepsTheHandle", "The handle of a lease that was given back still acknowledges.",
        "broker/state/consumption.py", '        leases["lease_id"][touched] = 0  # no handle fits any more\n', "",
        _LEASES,
    ),
    SourceMutant(
        "ReleaseMakesALeaseLonger", "A release moves the end of a lease that has ended.",
        "broker/state/consumption.py",
        'leases["deadline"][touched] = np.minimum(leases["deadline"][touched], now)',
        'leases["deadline"][touched] = now',
        _LEASES,
    ),
    SourceMutant(
        "ChangeRevivesAnEndedLease", "The end of a lease that has ended is moved.",
        "broker/state/consumption.py",
        'accepted &= (rows["deadline"] > now) & (rows["flags"] & ACKED == 0)',
        'accepted &= rows["flags"] & ACKED == 0',
        _LEASES,
    ),
    SourceMutant(
        "FifoForgetsTheBatch",
        "In order, an acknowledged message behind an open one does not come again with its batch.",
        "broker/state/consumption.py",
        "            open_rows[int(in_batch.argmax()) :] = True\n",
        "            pass\n",
        _LEASES,
    ),
    SourceMutant(
        "CommitGoesBack", "An older commit moves the position back.",
        "broker/state/consumption.py", "        if offset <= self.committed:\n            return self\n", "",
        _LEASES,
    ),
    SourceMutant(
        "LostIsCountedTwice", "Messages that were acknowledged count as lost to retention.",
        "broker/state/consumption.py",
        'open_rows = (self.leases["flags"] & ACKED == 0) & (self.leases["offset"] < begin)',
        'open_rows = self.leases["offset"] < begin',
        (*_LEASES, "broker/retention/test_retention.py"),
    ),
    SourceMutant(
        "SessionEndKeepsItsLeases", "The end of a session leaves its leases without an end.",
        "broker/state/consumption.py", '        leases["deadline"][mine] = deadline\n', "",
        _LEASES,
    ),
    SourceMutant(
        "NewLeaderForgetsSessions", "A restored state does not know whose leases are whose.",
        "broker/state/consumption.py",
        "                if session:\n                    self._sessions",
        "                if False:\n                    self._sessions",
        _LEASES,
    ),
    SourceMutant(
        "GrantedSinceMissesTheFirst",
        "A new leader keeps the leases of the first entry that may not have arrived.",
        "broker/leader/recent_deliveries.py",
        'found.leases["lease_id"] >= first_index)',
        'found.leases["lease_id"] > first_index)',
        ("broker/leader/test_deliveries.py",),
    ),
    SourceMutant(
        "LostNodeKeepsItsDeliveries", "What a lost node had to pass on is not released.",
        "broker/leader/recent_deliveries.py", "since = now - ON_THE_WAY_SECONDS", "since = now",
        ("broker/leader/test_deliveries.py",),
    ),
)  # fmt: skip

_RETAINED = (
    SourceMutant(
        "DeletesBelowNoCheckpoint", "Segments go that the state checkpoint does not cover.",
        "broker/retention/policy.py",
        "if not expiry.has_expired(segment) or segment.last_index >= expiry.floor "
        "or expiry.protects(segment):",
        "if not expiry.has_expired(segment) or expiry.protects(segment):",
        _RETENTION,
    ),
    SourceMutant(
        "OldestBelowNoCheckpoint", "A full disk deletes segments that the state checkpoint does not cover.",
        "broker/retention/policy.py", "freed < need and segments[keep].last_index < floor:", "freed < need:",
        _RETENTION,
    ),
    SourceMutant(
        "TheLastSegmentGoes", "The open segment is deleted when all has expired.",
        "broker/retention/policy.py",
        "    for segment in segments[:-1]:\n        if not expiry",
        "    for segment in segments:\n        if not expiry",
        _RETENTION,
    ),
    SourceMutant(
        "ProtectedByItsBegin", "A segment whose end somebody still has to read is deleted.",
        "broker/retention/policy.py",
        "segment.end_offset > self.protected_from",
        "segment.start_offset > self.protected_from",
        _RETENTION,
    ),
    SourceMutant(
        "ExpiresBeforeItsTime", "A segment is judged by a time that is twice as long ago.",
        "broker/retention/policy.py",
        "segment.last_timestamp >= self.keep_ms",
        "segment.last_timestamp >= self.keep_ms // 2",
        _RETENTION,
    ),
    SourceMutant(
        "StepsFlutter", "A step of the disk ends where it began.",
        "broker/service/disk_steps.py",
        "if share > (limit - MARGIN if each <= step else limit):",
        "if share > limit:",
        _RETENTION,
    ),
    SourceMutant(
        "FullDiskGoesOn", "A full disk takes messages while the numbers look well.",
        "broker/service/disk_steps.py",
        "return max(reached, DiskStep.REFUSE_MESSAGES) if full else reached",
        "return reached",
        _RETENTION,
    ),
    SourceMutant(
        "LeasedMessagesAreUnprotected",
        "What is leased and not acknowledged is not protected from retention.",
        "broker/state/backlog.py",
        "offset = max(known.first_needed, queue.begin)",
        "offset = max(known.position, queue.begin)",
        ("broker/state/test_backlog.py", *_RETENTION),
    ),
    SourceMutant(
        "PaceSavesUp", "After a quiet hour segments are unlinked in one burst.",
        "broker/retention/policy.py",
        "self._allowed = min(self._allowed + (now - self._last) * self._rate, max(1.0, self._rate))",
        "self._allowed += (now - self._last) * self._rate",
        _RETENTION,
    ),
)  # fmt: skip

_TIMERS = (
    SourceMutant(
        "StallGivesEveryTick", "After a stall the core gets every tick of it at once.",
        "raft/core/tick_schedule.py",
        "        if now_ms - self._next_ms > self._stall_ms:\n",
        "        if False:\n",
        ("raft/core/test_tick_schedule.py", "raft/core/test_quiet_ticks.py"),
    ),
    SourceMutant(
        "StallNeverTicks", "A loop that stalls again and again gets no tick.",
        "raft/core/tick_schedule.py",
        "            self._next_ms = now_ms + self._tick_ms\n            return 1",
        "            self._next_ms = now_ms + self._tick_ms\n            return 0",
        ("raft/core/test_tick_schedule.py", "raft/core/test_quiet_ticks.py"),
    ),
    SourceMutant(
        "NewLeaderGivesNoGrace", "A new leader takes every session for lost that did not call it yet.",
        "broker/leader/leader_view.py",
        "self._sessions.setdefault(session, self._since) >= SESSION_TIMEOUT_MS:",
        "self._sessions.setdefault(session, 0) >= SESSION_TIMEOUT_MS:",
        ("broker/leader/test_leader_view.py", "broker/official/test_receive_lost.py"),
    ),
    SourceMutant(
        "ClosedSessionWaits", "Leases of a client that said goodbye wait for its timeout.",
        "broker/leader/leader_view.py",
        "self._sessions[session] = self._since - SESSION_TIMEOUT_MS",
        "self._sessions[session] = self._since",
        ("broker/leader/test_leader_view.py", "broker/official/test_receive_lost.py"),
    ),
    SourceMutant(
        "SilentCallerLivesLonger", "A caller counts as alive for the leader's patience longer.",
        "broker/service/sessions.py", ">= CALLER_SECONDS:", ">= SILENCE_SECONDS:",
        ("broker/service/test_sessions.py", "broker/service/test_peers.py"),
    ),
    SourceMutant(
        "LogTimeGoesBack", "Log time follows a wall clock that steps back.",
        "raft/core/log_time.py",
        "            self._value = max(self._value + elapsed + min(limit, max(-limit, wanted)), "
        "float(self._floor))",
        "            self._value += elapsed + min(limit, max(-limit, wanted))",
        ("raft/core/test_log_time.py",),
    ),
    SourceMutant(
        "TransferNeverEnds", "A hand-over that nobody takes blocks proposals for ever.",
        "raft/core/leader.py",
        "            leading.transfer_to = None\n    leading.heartbeat_elapsed",
        "            pass\n    leading.heartbeat_elapsed",
        _CORE,
    ),
    SourceMutant(
        "OpenAppendNeverDropped", "An append that was never sent keeps its follower waiting for ever.",
        "raft/core/leader.py", "                follower.on_dropped()\n", "                pass\n",
        _CORE,
    ),
)  # fmt: skip

MUTANTS: Final = (*_DEDUPLICATION, *_READS, *_CHAINS, *_RECOVERING, *_LEASED, *_RETAINED, *_TIMERS)
