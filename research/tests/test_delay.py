import pandas as pd
import pytest

from shoal.core.errors import ShoalError
from shoal_research.cfcl.delay import LinkRates, delays


class Run:
    """A run of a method that says which of a client's rounds are exchanges."""

    def __init__(self, **columns):
        self.columns = columns

    def table(self, name):
        if name == "links":
            return pd.DataFrame({"round": [1, 1], "from": [1, 1], "to": [0, 2], "bytes": [500, 284]})
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
    # 1,000 bytes are 8 ms at 1 Mbit/s, one 28x28 image 6.27 ms; a megabit each way is two seconds.
    assert found["seconds"].tolist() == pytest.approx([0.008, 2.0])
    assert found["delay"].tolist() == pytest.approx([0.008, 2.008])
    slow = delays(Run(), LinkRates(d2d=1e5))
    assert slow["seconds"][0] == pytest.approx(0.06272)


def test_computing_and_narrow_parameters():
    assert delays(Run(), LinkRates(compute_factor=1.0))["seconds"].tolist() == pytest.approx([0.508, 4.0])
    assert delays(Run(), LinkRates(parameter_bits=16))["seconds"][1] == pytest.approx(1.0)


def test_choosing_samples_takes_its_time():
    run = Run(selecting=[None, 1.0, None])
    assert delays(run)["seconds"][0] == pytest.approx(0.00627 + 0.1, abs=1e-4)
    assert delays(run, LinkRates(exchange_factor=0))["seconds"][0] == pytest.approx(0.008)
    assert delays(run, LinkRates(exchange_factor=0, pixel_bits=16))["seconds"][0] == pytest.approx(0.012544)


def test_single_links_have_their_own_rates():
    found = delays(Run(), LinkRates(between={(0, 1): 1e4}))
    # 500 bytes at 10 kbit/s, then 284 at 1 Mbit/s.
    assert found["seconds"][0] == pytest.approx(0.4 + 0.002272)


def test_impossible_links_are_named():
    with pytest.raises(ShoalError, match=r"link \(1, 0\)"):
        LinkRates(between={(1, 0): 1e6})
    with pytest.raises(ShoalError, match="up link"):
        LinkRates(up=0)
