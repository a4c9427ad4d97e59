"""The common part of both SQL engines: schema, migrations and queries in .sql files."""
