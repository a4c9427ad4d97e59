"""MongoDB: the transactions of store/sql, with each of their named statements as an operation on documents."""
