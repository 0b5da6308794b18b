"""How numbers are written for people: three significant digits, a unit, and a dash for what is missing."""

import math

MISSING = "–"
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float | None) -> str:
    """3 -> 3, 0.01234 -> 0.0123, 45678 -> 45.7k, 0.0000012 -> 1.2×10⁻⁶, None -> –."""
    if value is None or not math.isfinite(value):
        return MISSING
    size = abs(value)
    if size == 0:
        return "0"
    if size < 1e-3:
        mantissa, exponent = f"{value:.1e}".split("e")
        return _minus(f"{mantissa.removesuffix('.0')}×10{str(int(exponent)).translate(_SUPERSCRIPT)}")
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit * 0.9995:
            return _minus(f"{value / (1e3 if unit == 'k' else limit):.3g}{unit}")
    if size >= 1000 or float(value).is_integer():
        return _minus(f"{value:.0f}")
    return _minus(f"{value:.3g}")


def percent(value: float | None) -> str:
    """0.683 -> 68.3 %; below one percent three digits are kept."""
    if value is None:
        return MISSING
    share = value * 100
    return _minus(f"{share:.1f} %" if abs(share) >= 1 or share == 0 else f"{share:.2g} %")


def points(value: float | None) -> str:
    """A difference of shares, signed: 0.241 -> +24.1."""
    return MISSING if value is None else _minus(f"{value * 100:+.1f}")


def duration(value: float | None) -> str:
    """Seconds: 0.42 s, 12 s, 7 min 05 s, 2 h 10 min."""
    if value is None:
        return MISSING
    if value < 10:
        return f"{value:.2g} s" if value else "0 s"
    whole = round(value)
    if whole < 100:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def decade(exponent: int) -> str:
    """The label of 10 to the `exponent` on a logarithmic axis."""
    return {0: "1", 1: "10", -1: "0.1"}.get(exponent, f"10{str(exponent).translate(_SUPERSCRIPT)}")


def _minus(text: str) -> str:
    return text.replace("-", "−")
