"""A tool that tells a model the temperature in a city."""

from typing import Literal

from rstar2 import tool

TEMPERATURES = {"Lima": 19.0, "Oslo": 4.5, "Hanoi": 27.5}
"""Temperatures in degrees Celsius. A real tool would query a service, a database or a library."""


@tool
def temperature(city: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> str:
    """Return the present temperature in a city.

    Args:
        city: The city's name in English, such as Lima.
        unit: The unit of the temperature. By default it is celsius.
    """
    if city not in TEMPERATURES:
        raise LookupError(f"no city {city}; there are {', '.join(TEMPERATURES)}")
    degrees = TEMPERATURES[city]
    return f"{degrees} °C" if unit == "celsius" else f"{degrees * 9 / 5 + 32} °F"


if __name__ == "__main__":
    # The decorator leaves the function callable.
    print(temperature("Oslo", unit="fahrenheit"))
