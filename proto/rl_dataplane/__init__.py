"""The contract of RL Data Plane, by version, and what server and client ask of their host. Imports nothing of ours."""
