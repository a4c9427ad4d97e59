"""The suite that other packages run on their stores, on all of ours."""

from holdfast.testing.store import StoreConformance


class TestConformance(StoreConformance):
    pass
