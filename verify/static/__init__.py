"""What is wrong with a file by its graph alone, known before anything runs: one rule, one function."""
