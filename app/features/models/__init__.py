"""Models on this machine and on the hub: found, estimated, downloaded, opened."""
