import pandas as pd
import pytest

from data.errors import ShoalError
from tasks.delay import Links, delays


class Run:
    def table(self, name):
        return pd.DataFrame(
            {
                "round": [1, 1, 2],
                "bytes_up": [1000, 0, 125_000],
                "bytes_down": [0, 0, 125_000],
                "bytes_d2d": [0, 784, 0],
                "seconds": [0.5, 0.1, 2.0],
            }
        )


def test_a_round_lasts_as_long_as_its_slowest_device():
    found = delays(Run())
    # 1,000 bytes are 8 ms at 1 Mbit/s, one 28x28 image 6.27 ms; a megabit each way is two seconds.
    assert found["seconds"].tolist() == pytest.approx([0.008, 2.0])
    assert found["delay"].tolist() == pytest.approx([0.008, 2.008])
    slow = delays(Run(), Links(d2d=1e5))
    assert slow["seconds"][0] == pytest.approx(0.06272)


def test_computing_and_narrow_parameters():
    assert delays(Run(), Links(computing=1.0))["seconds"].tolist() == pytest.approx([0.508, 4.0])
    assert delays(Run(), Links(parameter_bits=16))["seconds"][1] == pytest.approx(1.0)


def test_impossible_links_are_named():
    with pytest.raises(ShoalError, match="up link"):
        Links(up=0)
