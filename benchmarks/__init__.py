"""One script per claim about speed."""
