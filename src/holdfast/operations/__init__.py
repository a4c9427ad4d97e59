"""The operations on sessions, each written once: validation, rights, rules and audit. Every door calls them."""
