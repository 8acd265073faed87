"""Consensus: the pure Raft core, the CommitLog it owns, and the node that drives both."""
