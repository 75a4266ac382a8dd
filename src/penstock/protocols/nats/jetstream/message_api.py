"""The JetStream API of single messages: get and delete."""

from __future__ import annotations

from penstock.model.subjects import Filter, storable_subject
from penstock.model.times import parse_time, time_text_us
from penstock.protocols.nats.jetstream.api import Answer, ApiEndpoint, ApiRequest, requested_stream
from penstock.streams import Stream, Streams
from penstock.wire.jetstream import documents, errors, requests
from penstock.wire.jetstream.documents import StoredMessage


def subject_filter(text: str) -> Filter | None:
    """The filter of a text; None if no stored subject can match it."""
    try:
        subject = text.encode()
    except UnicodeEncodeError:
        return None
    return Filter.covering(subject) if storable_subject(subject) else None


async def start_offset(stream: Stream, seq: int, start_time: str) -> int:
    """The offset where a search begins: that of `seq`, or the first not before a time."""
    if start_time:
        return await stream.offset_at(-(-parse_time(start_time) // 1000))
    return max(seq - 1, 0)


async def requested_offset(
    stream: Stream, *, seq: int, last_by: str, next_by: str, start_time: str
) -> int | None:
    """The offset of the requested message; None if none matches. It may be deleted already."""
    if last_by:
        subjects = subject_filter(last_by)
        return None if subjects is None else await stream.last(subjects)
    offset = await start_offset(stream, seq, start_time)
    if not next_by:
        return offset
    subjects = subject_filter(next_by)
    return None if subjects is None else await stream.next(subjects, offset)


class MessageApi:
    """Endpoints of the message API."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def endpoints(self) -> dict[str, ApiEndpoint]:
        return {
            "STREAM.MSG.GET": ApiEndpoint(self._get, "stream_msg_get_response", 1, 1),
            "STREAM.MSG.DELETE": ApiEndpoint(
                self._delete, "stream_msg_delete_response", 1, 1, confirms=True
            ),
        }

    async def _get(self, request: ApiRequest) -> Answer:
        message_get = requests.parse_message_get(request.body)
        stream = await requested_stream(self._streams, request)
        offset = await requested_offset(
            stream,
            seq=message_get.seq,
            last_by=message_get.last_by_subj,
            next_by=message_get.next_by_subj,
            start_time=message_get.start_time,
        )
        rows = None if offset is None else await stream.get(offset)
        if rows is None or not rows.count:
            raise errors.MESSAGE_NOT_FOUND.error()
        message = StoredMessage(
            rows.subjects[0].decode("utf-8", "replace"),
            rows.offsets[0] + 1,
            b"" if rows.headers is None or message_get.no_hdr else rows.headers[0],
            rows.payloads[0],
            time_text_us(rows.timestamps[0]),
        )
        return documents.reply("stream_msg_get_response", {"message": message})

    async def _delete(self, request: ApiRequest) -> Answer:
        delete_request = requests.parse_message_delete(request.body)
        stream = await requested_stream(self._streams, request)
        if stream.config.sealed:
            raise errors.STREAM_SEALED.error()
        if stream.config.deny_delete:
            raise errors.MESSAGE_DELETE.error("message delete not permitted")
        if delete_request.seq > stream.last_seq:
            raise errors.MESSAGE_DELETE.error("stream store EOF")
        if not stream.count_all(delete_request.seq - 1, delete_request.seq):
            raise errors.SEQUENCE_NOT_FOUND.error(delete_request.seq)
        await stream.delete([delete_request.seq - 1])
        return documents.success("stream_msg_delete_response")
