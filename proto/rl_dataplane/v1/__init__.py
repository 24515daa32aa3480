"""Version 1 of the contract: `data_plane.proto` and the modules generated from it."""
