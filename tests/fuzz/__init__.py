"""Whatever comes from outside and is parsed: for any input, an error of ours or a valid result, and nothing else."""
