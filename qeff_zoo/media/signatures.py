# SPDX-License-Identifier: Apache-2.0
"""Kinds of files by their first bytes: for the choice of a decoder, and for errors that name what was given."""

from typing import NamedTuple


class _Signature(NamedTuple):
    """Bytes at one position of all files of a kind.

    Attributes:
        offset: Position of the bytes.
        magic: The bytes.
        kind: Description of the kind, with an article.
        demuxer: FFmpeg's name of the container; empty if it is no container of audio or video.
    """

    offset: int
    magic: bytes
    kind: str
    demuxer: str = ""


#: The first signature that a file has counts.
_SIGNATURES = (
    _Signature(4, b"ftypM4A", "an M4A recording", "mov"),
    _Signature(4, b"ftypqt", "a QuickTime video", "mov"),
    _Signature(4, b"ftypavif", "an AVIF image"),
    _Signature(4, b"ftypheic", "a HEIC image"),
    _Signature(4, b"ftypheix", "a HEIC image"),
    _Signature(4, b"ftypmif1", "a HEIF image"),
    _Signature(4, b"ftyp", "an MP4 file", "mov"),
    *(_Signature(4, atom, "a QuickTime video", "mov") for atom in (b"moov", b"mdat", b"wide", b"free", b"skip")),
    _Signature(0, b"\x1a\x45\xdf\xa3", "a WebM or Matroska file", "matroska"),
    _Signature(8, b"AVI ", "an AVI video", "avi"),
    _Signature(8, b"WAVE", "a WAV recording"),
    _Signature(8, b"WEBP", "a WebP image"),
    _Signature(0, b"FLV\x01", "an FLV video", "flv"),
    _Signature(0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "a WMA or WMV file", "asf"),
    _Signature(0, b"\x00\x00\x01\xba", "an MPEG video", "mpeg"),
    _Signature(0, b"#!AMR", "an AMR recording", "amr"),
    *(_Signature(0, bytes((0xFF, two)), "an AAC recording", "aac") for two in (0xF0, 0xF1, 0xF8, 0xF9)),
    _Signature(0, b"OggS", "an Ogg file", "ogg"),
    _Signature(0, b"caff", "a CAF recording", "caf"),
    _Signature(0, b"fLaC", "a FLAC recording"),
    _Signature(0, b"ID3", "an MP3 recording"),
    _Signature(0, b"\x89PNG", "a PNG image"),
    _Signature(0, b"\xff\xd8\xff", "a JPEG image"),
    _Signature(0, b"GIF8", "a GIF image"),
    _Signature(0, b"BM", "a BMP image"),
    _Signature(0, b"II*\x00", "a TIFF image"),
    _Signature(0, b"MM\x00*", "a TIFF image"),
    _Signature(0, b"%PDF", "a PDF document"),
    _Signature(0, b"MThd", "a MIDI file"),
    _Signature(0, b"PK\x03\x04", "a ZIP archive"),
    _Signature(0, b"\x1f\x8b", "a gzip archive"),
    _Signature(0, b"#EXTM3U", "a playlist"),
)  # fmt: skip
_MPEG_PACKET = 188  # bytes; a transport stream is a sequence of packets
_SYNC = b"\x47"
_LOOKED_AT = 512


def demuxer_of(data: bytes) -> str:
    """Return FFmpeg's name of the container of audio or video that a file is; empty for other files."""
    if signature := _found(data):
        return signature.demuxer
    is_stream = data[:1] == data[_MPEG_PACKET : _MPEG_PACKET + 1] == _SYNC
    return "mpegts" if is_stream else ""


def described(data: bytes) -> str:
    """Return the kind of a file by its first bytes, with an article, such as "a PNG image"."""
    if demuxer_of(data) == "mpegts":
        return "an MPEG video"
    if signature := _found(data):
        return signature.kind
    start = data[:_LOOKED_AT].lstrip()
    if start[:5].lower() in (b"<!doc", b"<html"):
        return "a web page"
    if start[:4] == b"<svg":
        return "an SVG drawing"
    try:
        text = data[:_LOOKED_AT].decode("utf-8", "strict" if len(data) < _LOOKED_AT else "ignore")
    except UnicodeDecodeError:
        text = "\0"
    return "text" if text.strip() and text.replace("\n", "").isprintable() else "of an unknown kind"


def _found(data: bytes) -> _Signature | None:
    return next(
        (
            signature
            for signature in _SIGNATURES
            if data[signature.offset : signature.offset + len(signature.magic)] == signature.magic
        ),
        None,
    )
