"""PostgreSQL 14 and later, through asyncpg."""
