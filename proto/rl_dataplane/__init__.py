"""The contract of RL Data Plane, by version. Messages and stubs only; imports nothing of ours."""
