"""What executes an artifact: one file a runtime, and the table of them."""
