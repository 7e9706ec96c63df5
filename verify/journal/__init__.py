"""What a run has finished, on disk before it goes on: a killed run continues, and the shards of a run are merged."""
