import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.commands import Output
from holdfast.shell.output import CHUNK_BYTES, STDERR, STDOUT, Collector, Decoder


def collect(collector: Collector) -> list[Output]:
    collector.end()
    return collector.take(10**9)


def text(outputs: list[Output], stream: str = "stdout") -> str:
    return "".join(getattr(output, stream) or "" for output in outputs)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")), st.data())
def test_text_survives_every_way_of_cutting_it(whole: str, data: st.DataObject):
    raw = whole.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)))))
    collector = Collector(10**6, 1000)
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        collector.feed(STDOUT, raw[start:end])
        if data.draw(st.booleans()):
            collector.flush()
    outputs = collect(collector)
    assert text(outputs) == whole
    assert not collector.damaged
    assert collector.left_out == 0
    assert collector.sizes == [len(raw), 0]


@given(st.binary(), st.integers(0, 20))
def test_any_bytes_become_the_same_text_wherever_they_are_cut(raw: bytes, cut: int):
    decoder = Decoder()
    first, damaged_first = decoder.decode(raw[:cut])
    second, damaged_second = decoder.decode(raw[cut:], final=True)
    whole = raw.decode(errors="replace").replace("\x00", "\ufffd")
    assert first + second == whole
    try:
        valid = "\x00" not in raw.decode()
    except UnicodeDecodeError:
        valid = False
    assert (damaged_first or damaged_second) is not valid


def test_a_chunk_has_64_kib_of_both_streams_together():
    collector = Collector(10**9, 0)
    for _ in range(5):
        collector.feed(STDOUT, b"o" * 30_000)
        collector.feed(STDERR, b"e" * 20_000)
    outputs = collect(collector)
    sizes = [len(o.stdout or "") + len(o.stderr or "") for o in outputs]
    assert sizes == [CHUNK_BYTES] * 3 + [250_000 - 3 * CHUNK_BYTES]
    assert (text(outputs), text(outputs, "stderr")) == ("o" * 150_000, "e" * 100_000)


@given(
    st.lists(st.tuples(st.sampled_from([STDOUT, STDERR]), st.binary(max_size=400)), max_size=40),
    st.integers(0, 200),
)
def test_beyond_the_limit_the_tail_is_kept(parts: list[tuple[int, bytes]], tail: int):
    limit = 1000
    collector = Collector(limit, tail)
    for stream, data in parts:
        collector.feed(stream, bytes(byte % 128 or 1 for byte in data))  # ASCII: one byte, one character
    written = [sum(len(data) for stream, data in parts if stream == which) for which in (STDOUT, STDERR)]
    outputs = collect(collector)
    assert collector.sizes == written
    both = text(outputs) + text(outputs, "stderr")
    if sum(written) <= limit:
        assert len(both) == sum(written)
        assert collector.left_out == 0
    else:
        assert collector.left_out == sum(written) - limit
        marker = f"\n[holdfast: {collector.left_out:,} bytes omitted here; the limit is 1,000]\n"
        assert both.count(marker) == 1
        assert len(both) == limit + len(marker)
    assert not collector.damaged


@pytest.mark.parametrize("limit", range(20, 33))
def test_characters_at_both_ends_of_the_gap_are_whole(limit: int):
    collector = Collector(limit, limit // 2)
    collector.feed(STDOUT, "aé€😀".encode() * 10)
    head, marker, tail = text(collect(collector)).split("\n")
    assert not collector.damaged
    assert ("aé€😀" * 10).startswith(head)
    assert ("aé€😀" * 10).endswith(tail)
    assert "bytes omitted here" in marker
    assert len((head + tail).encode()) == 100 - collector.left_out <= limit


def test_nothing_is_left_out_at_the_limit_itself():
    collector = Collector(100, 50)
    collector.feed(STDOUT, "€".encode() * 33 + b"!")
    assert text(collect(collector)) == "€" * 33 + "!"
    assert (collector.left_out, collector.damaged) == (0, False)
