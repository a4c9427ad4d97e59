"""What both SQL engines share: schema, migrations and queries in .sql files, and the transactions made of them."""
