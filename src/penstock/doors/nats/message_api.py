"""The JetStream API about single messages: get and delete."""

from __future__ import annotations

from penstock.doors.nats.api import Answer, ApiRequest, Endpoint
from penstock.doors.nats.message_choice import chosen_offset
from penstock.doors.nats.stream_api import found
from penstock.topics.streams.streams import Streams
from penstock.wire.jetstream import documents, errors, requests
from penstock.wire.jetstream.documents import Message
from penstock.wire.jetstream.times import time_text_us


class MessageApi:
    """Answers requests about messages."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def endpoints(self) -> dict[str, Endpoint]:
        return {
            "STREAM.MSG.GET": Endpoint(self._get, "stream_msg_get_response", 1, 1),
            "STREAM.MSG.DELETE": Endpoint(self._delete, "stream_msg_delete_response", 1, 1),
        }

    async def _get(self, request: ApiRequest) -> Answer:
        asked = requests.parse_message_get(request.body)
        stream = found(self._streams, request)
        offset = await chosen_offset(
            stream,
            seq=asked.seq,
            last_by=asked.last_by_subj,
            next_by=asked.next_by_subj,
            start_time=asked.start_time,
        )
        rows = None if offset is None else await stream.get(offset)
        if rows is None or not rows.count:
            raise errors.MESSAGE_NOT_FOUND.error()
        message = Message(
            rows.subjects[0].decode("utf-8", "replace"),
            rows.offsets[0] + 1,
            b"" if rows.headers is None or asked.no_hdr else rows.headers[0],
            rows.payloads[0],
            time_text_us(rows.timestamps[0]),
        )
        return documents.reply("stream_msg_get_response", {"message": message})

    async def _delete(self, request: ApiRequest) -> Answer:
        asked = requests.parse_message_delete(request.body)
        stream = found(self._streams, request)
        if stream.config.sealed:
            raise errors.STREAM_SEALED.error()
        if stream.config.deny_delete:
            raise errors.MESSAGE_DELETE.error("message delete not permitted")
        if asked.seq > stream.last_seq:
            raise errors.MESSAGE_DELETE.error("stream store EOF")
        if not stream.count_all(asked.seq - 1, asked.seq):
            raise errors.SEQUENCE_NOT_FOUND.error(asked.seq)
        await stream.delete([asked.seq - 1])
        return documents.success("stream_msg_delete_response")
