"""Real bytes, and what becomes of them on a bad day: flipped bits, cut ends, splices, and lengths that lie."""

from pathlib import Path
from typing import Final

from hypothesis import strategies as st

CORPUS: Final = Path(__file__).with_name("corpus")

PIECES: Final = (
    b"\x00",
    b"\xff" * 10,  # a varint that never ends, and the longest negative number
    b"\x80\x80\x80\x80\x08",  # a length of 2 GiB
    b"\xff\xff\xff\xff\x0f",
    b"\n" * 3,
    b"\x1b[2J\x1b[31m",
    b"\xc2\x9b31m",
    "\u2028\u202e\ufeff".encode(),
    b"\xed\xa0\x80",  # half a surrogate pair
    b'"\\ud800"',
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"-1",
    b"9" * 400,
    b"9" * 5_000,
    b"null",
    b"[" * 3_000,
    b'{"a":' * 3_000,
    b"\x0b" * 200,  # groups, one in another
    b"\x0a\xff\x7f" * 50,
    b"[]",
    b"{}",
    b"true",
    b"{",
    b"}",
    b'"',
)


def seeds(kind: str) -> tuple[bytes, ...]:
    """The recorded bytes of this kind."""
    found = tuple(path.read_bytes() for path in sorted((CORPUS / kind).iterdir()))
    assert found, f"no corpus of {kind}"
    return found


@st.composite
def broken(draw: st.DrawFn, originals: tuple[bytes, ...]) -> bytes:
    """One of these, whole or spoiled up to four times."""
    data = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 6)):
            case 0:
                del data[at:]
            case 1 if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case 2:
                data[at:at] = draw(st.sampled_from(PIECES))
            case 3:
                piece = draw(st.sampled_from(PIECES))
                data[at : at + len(piece)] = piece
            case 4:
                other = draw(st.sampled_from(originals))
                data[at:] = other[draw(st.integers(0, len(other))) :]
            case 5:
                data[at:at] = data[at : at + draw(st.integers(1, 64))]
            case _:
                del data[at : at + draw(st.integers(1, 64))]
    return bytes(data)


def spoiled(kind: str) -> st.SearchStrategy[bytes]:
    """Recorded bytes of this kind, whole or spoiled; now and then any bytes at all."""
    return st.one_of(broken(seeds(kind)), broken(seeds(kind)), st.binary(max_size=200))
