import pandas as pd
import pytest

from shoal_research.cfcl.delay import delays


class Run:
    """A run of a method that says which of a client's rounds are exchanges."""

    def __init__(self, **columns):
        self.columns = columns

    def table(self, name):
        assert name == "clients"
        return pd.DataFrame(
            {
                "round": [1, 1, 2],
                "client": [0, 1, 0],
                "bytes_up": [1000, 0, 125_000],
                "bytes_down": [0, 0, 125_000],
                "bytes_d2d": [0, 784, 0],
                "seconds": [0.5, 0.1, 2.0],
                **self.columns,
            }
        )


def test_a_round_lasts_as_long_as_its_slowest_device():
    found = delays(Run())
    assert found["round"].tolist() == [1, 2]
    # 1,000 bytes are 8 ms at 1 Mbit/s, one 28x28 image 6.27 ms; a megabit each way is two seconds.
    assert found["delay"].tolist() == pytest.approx([0.008, 2.008])


def test_choosing_samples_takes_its_time():
    found = delays(Run(selecting=[None, 1.0, None]))
    assert found["delay"].tolist() == pytest.approx([0.00627 + 0.1, 2.10627], abs=1e-4)
