from penstock.wire.messages import messages

BLOCK = b"NATS/1.0\r\nX: y\r\n\r\n"


def test_a_run_is_written_as_the_protocol_has_it() -> None:
    assert messages(b"in", b"7", None, None, [b"a", b""]) == (
        b"MSG in 7 1\r\na\r\nMSG in 7 0\r\n\r\n"
    )


def test_a_run_may_have_a_subject_and_a_reply_for_each_message() -> None:
    assert messages([b"a", b"b"], b"7", [b"r", b"s.t"], None, [b"x", b"yz"]) == (
        b"MSG a 7 r 1\r\nx\r\nMSG b 7 s.t 2\r\nyz\r\n"
    )


def test_only_messages_with_headers_are_written_with_headers() -> None:
    assert messages([b"a", b"b"], b"7", None, [BLOCK, b""], [b"x", b"yz"]) == (
        b"HMSG a 7 18 19\r\n" + BLOCK + b"x\r\nMSG b 7 2\r\nyz\r\n"
    )
    assert messages(b"a", b"7", [b"r", b"r"], [b"", b""], [b"x", b"yz"]) == (
        b"MSG a 7 r 1\r\nx\r\nMSG a 7 r 2\r\nyz\r\n"
    )
    assert messages(b"a", b"7", [b"r"], [BLOCK], [b""]) == b"HMSG a 7 r 18 18\r\n" + BLOCK + b"\r\n"


def test_a_subject_may_hold_a_percent_sign() -> None:
    assert messages(b"%d", b"%b", None, None, [b"%%"]) == b"MSG %d %b 2\r\n%%\r\n"
