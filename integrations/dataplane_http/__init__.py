"""An HTTP gateway to a data plane, for programs without Python: JSON over HTTP, written on the public client."""
