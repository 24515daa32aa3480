"""The client's verbs and how their calls reach a server: written once, in `_async`; `_sync` is derived."""
