"""Consensus: the pure Raft core, the CommitLog, and the node that runs both."""
