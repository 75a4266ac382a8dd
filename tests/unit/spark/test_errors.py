from penstock.spark.errors import DataLost, SparkError


def test_the_error_of_lost_data_says_how_to_continue() -> None:
    error = DataLost("default/default/t", 3, 10, 20)
    assert isinstance(error, SparkError)
    assert str(error) == (
        "topic default/default/t, partition 3: offsets 10 to 19 are gone; "
        "set failOnDataLoss to false to go on without them"
    )
