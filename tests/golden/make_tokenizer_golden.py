"""Write tokenizer.json.gz: what llama.cpp makes of fixed and generated texts, under several pre-tokenizers.

Run with a Python that has llama-cpp-python (nothing else is needed):

    python tests/golden/make_tokenizer_golden.py path/to/SmolLM2-135M-Instruct.Q4_1.gguf

The vocabulary is always SmolLM2's; for the other pre-tokenizers the script writes its header again under
another ``tokenizer.ggml.pre``. The generated texts are kept in the file, so that tests need no generator.
"""

from __future__ import annotations

import ctypes
import gzip
import hashlib
import json
import random
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

import llama_cpp  # type: ignore[import-not-found,unused-ignore]

SEED, GENERATED, GENERATED_OTHER = 20240607, 3000, 400
OTHER_PRE = ("default", "gpt-2", "llama-bpe", "dbrx", "qwen2")
SAME_AS = {
    "gpt-2": ("mpt", "olmo"),
    "starcoder": ("smollm", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
    "llama-bpe": ("llama3", "llama-v3", "falcon3"),
    "dbrx": ("smaug-bpe",),
    "qwen2": ("deepseek-r1-qwen", "stablelm2"),
}
"""Names that llama.cpp takes for one way of cutting; checked here, and recorded."""

FIXED = [
    "",
    " ",
    "  ",
    "   \n\n\t \r\n x",
    "\n",
    "\t\tindented",
    "trailing space ",
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    "I'm you're he's we've they'll she'd don't IT'S CAN'T 'tis ''s 'S",
    "1234567890 3.14159 1,000,000 0x1F 1e-9 ½ ² ① Ⅷ ٣ 五 ൩",
    "def f(x):\n    return [i**2 for i in range(x)]  # squares\n",
    'for (int i = 0; i < n; ++i) {\n\tprintf("%d\\n", a[i]);\n}\n',
    "SELECT * FROM t WHERE a >= 10 AND b != 'x''y';",
    '<html><body class="x">&nbsp;</body></html>',
    "https://example.org/a/b?c=d&e=f#g user@example.org",
    "naïve café résumé Ångström straße ﬁ ſ",
    "cafe\u0301 e\u0308\u0323 a\u0301\u0301\u0301 \u0301alone Z̷̮a̷l̶g̵o̶",
    "你好，世界。今天天气很好！",
    "こんにちは世界 カタカナ ｶﾀｶﾅ ひらがな",
    "안녕하세요 세계 ᄀ 가",
    "Привет, мир! Ёж Щука",
    "مرحبا بالعالم ١٢٣ ـــ",
    "नमस्ते दुनिया क्षि १२३",
    "שָׁלוֹם עוֹלָם",
    "ภาษาไทย ๑๒๓ ກຂ",
    "😀 😃😄 👨‍👩‍👧‍👦 🏳️‍🌈 🇫🇷🇩🇪 👍🏽 ❤️ ☃",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𒀀 𠀀 𝟘𝟙",
    "\x00 \x01\x02\x03\x05\x07\x08\x0b\x0c\x0e\x0f\x10\x1b[31mred\x1b[0m\x7f\x80\x9f",
    "\x85\xa0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000end",
    "\u200b\u200c\u200d\u2060\ufeff zero\u00adwidth",
    "a\u2003b \u2003 c\u00a0\u00a0d",
    "!!!???...---___***###",
    '(((])}{[ "quoted" ‘curly’ “curly” «guillemets» —–‒',
    "a=b+c*d/e%f^g|h&i~j`k@l$m#n<o>p",
    "€100 £20 ¥3000 $5 +1 <=> ^_^ |x| ~y~",
    "CamelCaseWords snake_case_words kebab-case-words SCREAMING_CASE",
    "word" * 20,
    " " * 50 + "x",
    "x" + "\n" * 30,
    "ab" * 100,
    "\r\n\r\nwindows\r\nlines\r",
    "tab\tseparated\tvalues\n1\t2\t3\n",
    "𝒳 = {𝓍 ∈ ℝ : ∀ε>0 ∃δ} ⇒ ∑ ∫ √2 ≈ 1.414",
    "\ue000\uf8ff private \U000f0000",
    "\ufffd replacement \ufffe\uffff",
    "end of text <|endoftext|> <|im_start|>user\nhi<|im_end|>\n<repo_name> <file_sep>",
    "<|im_start|><|im_start|><|im_end|",
    "<|im_<|im_end|>end|>",
]

WORDS = [
    "the",
    "of",
    "and",
    "model",
    "token",
    "don't",
    "we'll",
    "I'm",
    "O'Neil",
    "x1",
    "foo_bar",
    "Über",
    "naïve",
    "żółw",
    "данные",
    "数据",
    "データ",
    "데이터",
    "بيانات",
]
RANGES = [
    (0x20, 0x7E), (0x20, 0x7E), (0x20, 0x7E), (0x00, 0x1F), (0xA0, 0xFF), (0x100, 0x24F), (0x300, 0x36F),
    (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x2000, 0x206F),
    (0x20A0, 0x20CF), (0x2100, 0x218F), (0x2190, 0x22FF), (0x2460, 0x24FF), (0x3000, 0x30FF),
    (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xE000, 0xE0FF), (0xFE00, 0xFE0F), (0xFF00, 0xFFEF),
    (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF),
]  # fmt: skip
SPACES = [" ", "  ", "    ", "\n", "\n\n", "\t", "\r\n", " \n", "\u00a0", "\u3000", "\u2028", "\x0b"]


def generated(count: int) -> list[str]:
    """Texts of up to 18 parts: words, numbers, white space, and characters of every script."""
    draw = random.Random(SEED)
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(draw.randint(1, 18)):
            kind = draw.random()
            if kind < 0.25:
                parts.append(draw.choice(WORDS))
            elif kind < 0.35:
                parts.append(str(draw.randint(0, 10 ** draw.randint(1, 7))))
            elif kind < 0.55:
                parts.append(draw.choice(SPACES) * draw.randint(1, 2))
            else:
                low, high = draw.choice(RANGES)
                parts.append("".join(chr(draw.randint(low, high)) for _ in range(draw.randint(1, 4))))
        texts.append("".join(parts))
    return texts


def with_pre(header: bytes, pre: str) -> bytes:
    """The metadata of a GGUF file alone, without tensors, under another pre-tokenizer."""
    key = b"tokenizer.ggml.pre" + struct.pack("<I", 8)
    start = header.index(key) + len(key)
    (length,) = struct.unpack_from("<Q", header, start)
    end = header.index(struct.pack("<Q", 17) + b"token_embd.weight")
    value = struct.pack("<Q", len(pre)) + pre.encode()
    return header[:8] + struct.pack("<Q", 0) + header[16:start] + value + header[start + 8 + length : end]


class Oracle:
    """llama.cpp's tokenizer of one file."""

    def __init__(self, path: Path) -> None:
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        assert self.model, f"llama.cpp cannot load {path}"
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)

    def encode(self, text: str, parse_special: bool) -> list[int]:
        data = text.encode()
        room = len(data) + 8
        ids = (llama_cpp.llama_token * room)()
        count = llama_cpp.llama_tokenize(self.vocab, data, len(data), ids, room, False, parse_special)
        assert count >= 0
        return list(ids[:count])


def encode_all(data: bytes, pre: str, texts: list[str]) -> list[list[int]]:
    """The tokens of ``texts`` under another pre-tokenizer."""
    with tempfile.TemporaryDirectory() as folder:
        changed = Path(folder) / "vocabulary.gguf"
        changed.write_bytes(with_pre(data[:4_000_000], pre))
        oracle = Oracle(changed)
        return [oracle.encode(text, False) for text in texts]


def main() -> None:
    path = Path(sys.argv[1])
    data = path.read_bytes()
    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    texts = FIXED + generated(GENERATED)
    fewer = texts[: len(FIXED) + GENERATED_OTHER]
    oracle = Oracle(path)
    golden: dict[str, Any] = {
        "made_with": {
            "llama_cpp_python": llama_cpp.__version__,
            "python": sys.version.split()[0],
            "model": path.name,
            "model_sha256": hashlib.sha256(data).hexdigest(),
            "seed": SEED,
        },
        "texts": texts,
        "fixed": len(FIXED),
        "special": [oracle.encode(text, True) for text in FIXED],
        "plain": {"smollm": [oracle.encode(text, False) for text in texts]},
    }
    for pre in OTHER_PRE:
        golden["plain"][pre] = encode_all(data, pre, fewer)
    for pre, others in SAME_AS.items():
        ids = encode_all(data, pre, fewer)
        for other in others:
            assert encode_all(data, other, fewer) == ids, f"{other} is not {pre}"
    golden["same_as"] = SAME_AS
    packed = json.dumps(golden, ensure_ascii=False, separators=(",", ":")).encode()
    out = Path(__file__).with_name("tokenizer.json.gz")
    out.write_bytes(gzip.compress(packed, 9, mtime=0))
    print(f"{out}: {out.stat().st_size} bytes, {len(texts)} texts")


if __name__ == "__main__":
    main()
