"""Session stores for other agent frameworks. Each module needs its own extra, and nothing else imports it.

The data of a framework becomes records of a session, so that list, search, export, clean, rehydrate, erase, hold, audit and access
rules apply to it as to every other session.
"""
