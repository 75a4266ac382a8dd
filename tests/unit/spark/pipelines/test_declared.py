import pytest

from penstock.spark.errors import OptionInvalid
from penstock.spark.pipelines import declared

GOOD = """
name: paid
checkpoint: /c
sources: {orders: {topic: orders, options: {startingOffsets: earliest}}}
steps: [{name: paid, sql: select 1}]
sinks: [{from: paid, topic: t}, {from: orders, path: /p, format: json}]
"""


def test_a_pipeline_file_is_parsed() -> None:
    read = declared.parse_pipeline(GOOD)
    assert read.sources["orders"].options == {"startingOffsets": "earliest"}
    assert [(sink.source, sink.topic, sink.path) for sink in read.sinks] == [
        ("paid", "t", None),
        ("orders", None, "/p"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("name: paid\n", "", "cannot be read: .*name"),
        ("topic: t}", "topic: t, tpoic: x}", "cannot be read: .*tpoic"),
        ("{from: paid, topic: t}", "{from: nobody, topic: t}", "from 'nobody', which is none of"),
        ("{from: paid, topic: t}", "{from: paid}", "needs a topic or a path"),
        ("{from: paid, topic: t}", "{from: paid, topic: t, path: /x}", "a topic or a path"),
        ("format: json", "format: xml", "format 'xml' is none of"),
        ("{name: paid,", "{name: orders,", "must be different"),
        ("sinks: [", "sinks: []\nother: [", "cannot be read"),
        ("sources: {", "sources: ][", "cannot be read"),
    ],
)
def test_an_invalid_pipeline_is_refused(old: str, new: str, words: str) -> None:
    assert old in GOOD
    with pytest.raises(OptionInvalid, match=words):
        declared.parse_pipeline(GOOD.replace(old, new))


def test_a_pipeline_without_sinks_is_refused() -> None:
    text = GOOD.partition("sinks:")[0] + "sinks: []"
    with pytest.raises(OptionInvalid, match="at least one source and one sink"):
        declared.parse_pipeline(text)
