"""The eleven promises, each with the drills that attack it, on real processes and real databases.

1. Acknowledged is durable: test_acknowledged_is_durable, and tests/contract/test_processes.
2. One writer: test_one_writer, test_model.
3. Dense order: test_dense_order, test_model.
4. No blind repeat: test_no_blind_repeat, test_delegates_are_killed.
5. Nothing stuck: test_nothing_stuck.
6. Always continuable: test_always_continuable, test_delegates_are_killed.
7. Flat cost: test_flat_cost counts; `make bench` times.
8. Exact return: test_exact_return, test_retention_is_killed.
9. Gone is gone: test_gone_is_gone, test_retention_is_killed.
10. Closed by default: test_closed_by_default; tests/server/test_auth, which tries every route; tests/server/test_sockets.

All of 1 to 6 at once: test_under_fire, and for as long as one likes `make torture`.
"""
