"""The replicated state machine and the services of a broker node."""
