"""Numbers, times and sizes in words."""


def count(number: int, noun: str) -> str:
    """A number with its noun, such as "1 line" and "1,234 lines"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float, parts: int = 2) -> str:
    """Seconds in the largest units, at most `parts` of them, such as "2 h 11 min" and "2 h"."""
    minutes, rest = divmod(round(max(seconds, 0)), 60)  # clocks may be set back
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    amounts = {"d": days, "h": hours, "min": minutes, "s": rest}
    first = next((n for n, amount in enumerate(amounts.values()) if amount), len(amounts) - 1)
    shown = list(amounts.items())[first : first + parts]
    given = [one for one in shown if one[1]] or shown
    return " ".join(f"{amount} {unit}" for unit, amount in given)


def size(num_bytes: float) -> str:
    """Bytes in the decimal unit that leaves at most three digits, such as "1.2 MB"."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while num_bytes >= 999.5 and len(units) > 1:
        num_bytes, units = num_bytes / 1000, units[1:]
    digits = 1 if num_bytes < 9.95 and units[0] not in ("B", "kB") else 0
    return f"{num_bytes:.{digits}f} {units[0]}"
