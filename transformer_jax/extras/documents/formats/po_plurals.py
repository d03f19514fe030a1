"""Forms of plurals in message catalogues of gettext.

https://www.gnu.org/software/gettext/manual/html_node/Plural-forms.html
"""

import dataclasses
import gettext
import re
from collections.abc import Mapping, Sequence

from transformer_jax.extras.documents import languages

_FIELD = re.compile(r"nplurals\s*=\s*(\d+)\s*;\s*plural\s*=([^;\n]+)")
_NUMBERS = range(1000)  # of things, for which the forms are known
_SLAVIC = "n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2"
# Of a header that does not say it, by the language: how many forms, and the form of n.
_USUAL = {
    **dict.fromkeys(("fa", "id", "ja", "ka", "ko", "lo", "ms", "th", "vi", "zh"), (1, "0")),
    **dict.fromkeys(("fr", "hy", "pt_br", "pt-br"), (2, "n > 1")),
    **dict.fromkeys(
        ("be", "bs", "hr", "ru", "sr", "uk"), (3, f"n%10==1 && n%100!=11 ? 0 : {_SLAVIC}")
    ),
    "pl": (3, f"n==1 ? 0 : {_SLAVIC}"),
    **dict.fromkeys(("cs", "sk"), (3, "n==1 ? 0 : n>=2 && n<=4 ? 1 : 2")),
    "lt": (3, "n%10==1 && n%100!=11 ? 0 : n%10>=2 && (n%100<10 || n%100>=20) ? 1 : 2"),
    "lv": (3, "n%10==1 && n%100!=11 ? 0 : n!=0 ? 1 : 2"),
    "ro": (3, "n==1 ? 0 : n==0 || (n%100>0 && n%100<20) ? 1 : 2"),
    "ga": (3, "n==1 ? 0 : n==2 ? 1 : 2"),
    "is": (2, "n%10!=1 || n%100==11"),
    "sl": (4, "n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3"),
    "ar": (6, "n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5"),
}
_DEFAULT = (2, "n != 1")


@dataclasses.dataclass(frozen=True)
class Plurals:
    """The forms that a language has for numbers of things.

    Attributes:
      count: of them; 0: not known.
      numbers: form -> what it is for.
      field: of a header that says so; "": not known.
    """

    count: int = 0
    numbers: Mapping[int, Sequence[int]] = dataclasses.field(default_factory=dict)
    field: str = ""

    def is_for_one(self, form: int) -> bool:
        """Whether a form is for 1 thing, among others."""
        return 1 in self.numbers[form] if form in self.numbers else form == 0

    def is_for_others(self, form: int) -> bool:
        """Whether a form that is for 1 is for other numbers too."""
        return len(self.numbers.get(form, [1])) > 1


def of_header(header: str) -> Plurals:
    """What a header says, the translation of the empty message."""
    field = _FIELD.search(header)
    if field is None:
        return Plurals()
    try:
        form_of = gettext.c2py(field[2])
        forms = [form_of(number) for number in _NUMBERS]
    except (ValueError, ZeroDivisionError):
        return Plurals()
    numbers = {form: [n for n in _NUMBERS if forms[n] == form] for form in {*forms}}
    return Plurals(int(field[1]), numbers, field[0])


def of_language(code: str) -> Plurals:
    """Those that are usual in a language."""
    if not code:
        return Plurals()
    usual = _USUAL.get(code.lower()) or _USUAL.get(languages.two_letters(code), _DEFAULT)
    return of_header("nplurals={}; plural={};".format(*usual))
