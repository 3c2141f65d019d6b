"""What applications receive."""

import pytest

from epochal.client.encoding.encodings import decoder, encoder
from epochal.client.subscriber.values import Data, Epoch, EpochAborted
from epochal.errors import RemoteProtocolError


def data(seq: int, payload: bytes, count: int) -> Data:
    return Data(7, b"t", "0", seq, count, payload, decoder("json"))


def test_an_epoch_decodes_its_batches_in_order() -> None:
    encode = encoder("json")
    epoch = Epoch(7, (data(1, encode([1, 2]), 2), data(2, encode(["x"]), 1)))
    assert list(epoch.records()) == [1, 2, "x"]
    assert list(epoch.records()) == [1, 2, "x"], "as often as wanted"
    assert epoch.count == 3
    assert repr(epoch) == "Epoch(time=7)", "payloads do not flood logs"


def test_a_payload_that_cannot_be_decoded_is_reported_when_it_is_read() -> None:
    batch = data(1, b"\xff", 1)
    with pytest.raises(RemoteProtocolError):
        batch.records()
    assert "xff" not in repr(batch)


def test_values_compare_and_match() -> None:
    assert data(1, b"[]", 0) == data(1, b"[]", 0)
    assert EpochAborted(1) != EpochAborted(2)
    match EpochAborted(3):
        case EpochAborted(time):
            assert time == 3
    with pytest.raises(AttributeError):
        EpochAborted(1).time = 2  # type: ignore[misc]  # on purpose
