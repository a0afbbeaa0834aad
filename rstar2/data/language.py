"""Detects whether a text was rewritten in another language.

The test compares the scripts of two texts. For texts in Latin script, it also compares the function words. This test is
simple, and reports only clear cases. The test cannot tell apart languages that share a script other than Latin (Russian
and Ukrainian, Arabic and Persian). The test also misses languages that are not in `_FUNCTION_WORDS`, and texts with few
function words. Code, formulas and web addresses are ignored.
"""

from __future__ import annotations

import re
from collections import Counter

_NO_PROSE = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`|\$\$[^$]*\$\$|\$[^$\n]*\$|\\\[(?:(?!\\[\[\]]).)*+\\\]|\\\((?:(?!\\[()]).)*+\\\)"
    r"|\\[A-Za-z]+|https?://\S+",
    re.DOTALL,
)
_SCRIPTS = {
    "Latin": r"[A-Za-z\u00c0-\u024f\u1e00-\u1eff]+",
    # Shorter runs of Greek letters are usually formulas.
    "Greek": r"[\u0370-\u03ff\u1f00-\u1fff]{3,}",
    "Cyrillic": r"[\u0400-\u052f]+",
    "Hebrew": r"[\u0590-\u05ff]+",
    "Arabic": r"[\u0600-\u06ff\u0750-\u077f]+",
    "Indic": r"[\u0900-\u0dff]+",
    "Thai": r"[\u0e00-\u0e7f]+",
    "Korean": r"[\u1100-\u11ff\uac00-\ud7af]+",
    "Japanese": r"[\u3040-\u30ff]+",
    "Chinese": r"[\u3400-\u9fff\uf900-\ufaff]+",
}
_RUN = re.compile("|".join(f"(?P<{name}>{letters})" for name, letters in _SCRIPTS.items()))
"""Matches a run of letters of one script."""
_NEW_SHARE = 0.1
"""A script is new if it has more than this share of the new text's letters, and was absent from the old text."""
_LOST_SHARE = 0.3
"""A script is lost if it had more than this share of the old text's letters, and is absent from the new text."""
_NONE = 0.01
"""A script is absent if its share of a text's letters is below this value. A name or a single word in a script
therefore does not make the script present."""

_FUNCTION_WORDS = {
    "English": "the of and to is that it for with as are was this be have not you which from or an by your can if when",
    "German": "der die das und ist nicht ein eine den dem des mit zu für auf sich auch wird werden von im sind oder",
    "French": "le la les des et est une dans pour que qui pas sur du au par avec vous ce cette sont être ou si aux",
    "Spanish": "el la los las de que es en un una por con para se no del al lo como más pero está si son este",
    "Portuguese": "os as de que em um uma por com para se não do da no na ao dos das como mais mas são este",
    "Italian": "il lo gli di che un una per con non si del della nel sono come più ma questo anche alla dei viene",
    "Dutch": "de het een van en is niet dat op te met voor zijn die aan er worden wordt als bij of deze ook kan naar",
    "Swedish": "och att det som en på är av för med den till inte om ett har kan de från eller när inom används",
    "Danish": "og at det som en på er af for med den til ikke om et har kan de fra eller når bruges der hvis",
    "Polish": "na do nie się jest to że jak po za od przez dla są lub oraz który jego może być gdy",
    "Czech": "se na je že do pro to jako nebo jsou není být který po od pokud může tento ve",
    "Romanian": "și de la în cu nu un pe este sau să care din pentru se al ale sunt dacă fi mai ca acest",
    "Hungarian": "az és hogy nem egy is van ha vagy meg csak ez mint lehet minden azt el ezt kell akkor",
    "Finnish": "ja on ei se että joka tai kun jos ovat ole niin myös mutta voi tämä voidaan sen kuin siitä",
    "Turkish": "ve bir bu için ile olarak da de değil veya olan ne kadar gibi daha çok ise eğer her olur",
    "Indonesian": "yang dan di ini untuk dengan tidak dari dalam akan pada atau adalah itu ke oleh jika dapat sebagai",
    "Vietnamese": "và của là có không được cho các một này với trong để những khi đã từ người thì hoặc nếu",
}
_LANGUAGES: dict[str, frozenset[str]] = {
    name: frozenset(words.split()) for name, words in _FUNCTION_WORDS.items()
}
_LEAST_WORDS = 3
"""Minimum number of different function words of a language that a text must contain to count as a text in that
language."""
_LEAST_SHARE = 0.08
"""Minimum share of function words of one language among a text's words."""
_TIMES_THE_OTHER = 2.0
"""In each of the two texts, function words of its own language must be at least this many times as frequent as function
words of the other text's language."""


def in_another_language(old: str, new: str) -> bool:
    """Whether the new text is clearly in another language or script than the old text."""
    before, after = _shares(old), _shares(new)
    if before and after:
        # Latin is left out, because names and terms in Latin letters occur in texts of every script.
        others = [script for script in _SCRIPTS if script != "Latin"]
        if any(after[each] > _NEW_SHARE and before[each] < _NONE for each in others):
            return True
        if any(before[each] > _LOST_SHARE and after[each] < _NONE for each in _SCRIPTS):
            return True
    first, second = _function_words(old), _function_words(new)
    if not (first and second):
        return False
    language, other = (max(counts, key=lambda name: counts[name]) for counts in (first, second))
    return (
        language != other
        and first[language] >= _TIMES_THE_OTHER * first[other]
        and second[other] >= _TIMES_THE_OTHER * second[language]
    )


def _function_words(text: str) -> Counter[str]:
    """Returns the number of function words of each language in a text.

    The result is empty if the text has too few function words.
    """
    words = Counter(run[0].lower() for run in _RUN.finditer(_prose(text)) if run.lastgroup == "Latin")
    counts = {
        name: sum(words[word] for word in known)
        for name, known in _LANGUAGES.items()
        if len(known & words.keys()) >= _LEAST_WORDS
    }
    enough = max(counts.values(), default=0) >= _LEAST_SHARE * words.total()
    return Counter(counts) if enough else Counter()


def _shares(text: str) -> dict[str, float]:
    """Returns the share of each script in a text's letters. Empty if the text has no letters."""
    letters: Counter[str] = Counter()
    for run in _RUN.finditer(_prose(text)):
        letters[str(run.lastgroup)] += len(run[0])
    return {script: letters[script] / letters.total() for script in _SCRIPTS} if letters else {}


def _prose(text: str) -> str:
    return _NO_PROSE.sub(" ", text)
