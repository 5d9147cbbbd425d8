"""Strings, in vectors and matrices."""

import numpy as np

from tests.conformance.executor import Case


def words(*values: str) -> np.ndarray:
    return np.array(values, object)


def text(value: str) -> np.ndarray:
    return np.array(value, object)


def table(rows: int, *values: str) -> np.ndarray:
    return words(*values).reshape(rows, -1)


WORDS = words(" Alpha", "beta ", "", "ga mma", "del-ta")
NUMBERS = table(3, "1", "-2", "3.5", "4", "5", "6e1")
FIXED = table(3, "abcd", "efgh", "ijkl", "mnop", "qrst", "uvwx")

CASES: list[Case] = [
    *(Case(kind, (WORDS,)) for kind in ("StringLength", "StringLower", "StringUpper", "StringStrip", "EncodeBase64")),
    Case("DecodeBase64", (words("YQ", "YmM", "", "ZGVm", "Zw"),)),
    Case("DecodeCompressed", (WORDS,)),
    Case("AsString", (np.arange(10.0).reshape(5, 2) / 3,), {"precision": 2}),
    Case("AsString", (np.arange(5) > 2,)),
    *(Case("StringToNumber", (NUMBERS,), {"out_type": dtype}) for dtype in ("float32", "float64")),
    Case("StringToHashBucket", (WORDS,), {"num_buckets": 7}),
    Case("StringToHashBucketFast", (NUMBERS,), {"num_buckets": 7}),
    Case("StringToHashBucketStrong", (WORDS,), {"num_buckets": 7, "key": (1, 2)}),
    Case("StringJoin", (WORDS, text("-"), WORDS), {"separator": "."}),
    Case("StringJoin", (NUMBERS, NUMBERS)),
    Case("RegexFullMatch", (WORDS, text(".*a"))),
    Case("RegexReplace", (WORDS, text("a"), text("o"))),
    Case("StaticRegexFullMatch", (WORDS,), {"pattern": ".*a"}),
    Case("StaticRegexReplace", (WORDS,), {"pattern": "a", "rewrite": "o"}),
    Case("Substr", (FIXED, np.array(1, "int32"), np.array(2, "int32"))),
    Case("Substr", (FIXED, np.array([[0], [1], [2]], "int64"), np.array([[2], [1], [1]], "int64"))),
    Case("UnicodeTranscode", (WORDS,), {"input_encoding": "UTF-8", "output_encoding": "UTF-16-BE"}),
    Case("UnicodeScript", (np.array([66, 1041, 945, 12354, 49], "int32"),)),
    Case("DecodeRaw", (FIXED,), {"out_type": "int16"}),
    Case("DecodePaddedRaw", (WORDS, np.array(4, "int32")), {"out_type": "uint8"}, (1,)),
    Case("Fingerprint", (FIXED, text("farmhash64"))),
    Case(
        "DecodeCSV", (words("1,a", "2,b", ",c"), np.array([7], "int32"), words("d")), {"OUT_TYPE": ("int32", "string")}
    ),
    Case("ReduceJoin", (FIXED, np.array([1], "int32")), {}, (1,)),
    Case("ReduceJoin", (FIXED, np.array([0], "int32")), {"keep_dims": True, "separator": "+"}, (1,)),
    Case("UnsortedSegmentJoin", (FIXED, np.array([1, 0, 1], "int32"), np.array(2, "int32")), {}, (2,)),
]
