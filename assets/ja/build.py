"""Makes readings.bin.z: IPADIC reduced to what it takes to read kanji.

    python build.py <folder with the IPADIC csv files, matrix.def> <out>

Needs numpy. IPADIC is the Debian package mecab-ipadic (2.7.0-20070801), folder /usr/share/mecab/dic/ipadic.
What is left out: words without kanji that are no function words, verbs or adjectives; inflected forms (kept as stem and paradigm);
compounds and proper names whose reading follows from their parts; all but 400 classes of the 1316 context ids. The
format is described in src/engine/text/languages/ja/dictionary.rs, which reads it.
"""
import collections
import csv
import pathlib
import re
import struct
import sys
import unicodedata
import zlib

import numpy as np

CLASSES = 400
COST_STEP = 64
UNKNOWN_ID = 1285  # noun, common: what an unknown word is taken for
ADVERBIAL_ID = 1314  # noun, adverbial
COUNTER_ID = 1300  # suffix, counter
COUNTED_COST = 1000
KANJI = re.compile("[\u4e00-\u9fff]")
READABLE = re.compile("^[\u3041-\u309f\u30a1-\u30ff\u4e00-\u9fff々〇0-9]+$")
KANA = "".join(map(chr, range(0x3041, 0x3097))) + "ー"
ALL_KANA = set(map(chr, [*range(0x3041, 0x3097), *range(0x30A1, 0x30F7), 0x30FC]))
MARKS = set("、。「」・,.!?()[]-\"':;~")
ARCHAIC = {"未然特殊", "体言接続特殊", "体言接続特殊2", "文語基本形", "仮定縮約2", "未然ヌ接続"}
PROPER = "固有名詞"


def hiragana(text):
    return "".join(chr(ord(c) - 0x60) if "ァ" <= c <= "ヶ" else c for c in text)


Row = collections.namedtuple("Row", "surface id cost pos sub conj form base reading")


def read_rows(folder):
    rows = []
    for path in sorted(pathlib.Path(folder).glob("*.csv")):
        for r in csv.reader(open(path, encoding="euc-jp")):
            surface = unicodedata.normalize("NFKC", r[0]).lower()
            reading = hiragana(unicodedata.normalize("NFKC", r[11]))
            if not (READABLE.match(surface) or surface in MARKS) or (KANJI.search(surface) and set(reading) - set(KANA)):
                continue
            rows.append(Row(surface, int(r[1]), int(r[3]), r[4], r[5], r[8], unicodedata.normalize("NFKC", r[9]),
                            unicodedata.normalize("NFKC", r[10]), reading))
    return rows


def counted():
    """Readings of numbers with counters, which IPADIC lacks: [(surface, reading)], whole ones and those that may follow a number."""
    days = "ふつか みっか よっか いつか むいか なのか ようか ここのか とおか".split()
    whole = [("一人", "ひとり"), ("二人", "ふたり"), ("1人", "ひとり"), ("2人", "ふたり"), ("四人", "よにん"), ("二十歳", "はたち")]
    whole += [(f"{n}日", day) for i, day in enumerate(days) for n in ("二三四五六七八九十"[i], str(i + 2))]
    whole += [("二十日", "はつか"), ("20日", "はつか"), ("十四日", "じゅうよっか"), ("二十四日", "にじゅうよっか")]
    part = [("月一日", "がつついたち"), ("月1日", "がつついたち")]
    part += [(f"月{n}日", f"がつ{day}") for i, day in enumerate(days) for n in ("二三四五六七八九十"[i], str(i + 2))]
    part += [("月二十日", "がつはつか"), ("月20日", "がつはつか")]
    part += [("三百", "さんびゃく"), ("六百", "ろっぴゃく"), ("八百", "はっぴゃく"), ("三千", "さんぜん"), ("八千", "はっせん")]
    part += [(f"{n}月", f"{kana}がつ") for n, kana in zip("一二三五六八十", "いち に さん ご ろく はち じゅう".split())]
    part += [("四時", "よじ"), ("七時", "しちじ"), ("九時", "くじ"), ("四月", "しがつ"), ("七月", "しちがつ"), ("九月", "くがつ"), ("四年", "よねん")]
    stopped = {"一": "いっ", "六": "ろっ", "八": "はっ", "十": "じゅっ"}
    for counter, plain, half, voiced in [("本", "ほん", "ぽん", "ぼん"), ("杯", "はい", "ぱい", "ばい"), ("匹", "ひき", "ぴき", "びき"),
                                         ("分", "ふん", "ぷん", "ぷん"), ("百", "ひゃく", "ぴゃく", "びゃく")]:
        part += [(n + counter, kana + half) for n, kana in stopped.items() if counter != "百" and n + counter != "十分"] + [("三" + counter, "さん" + voiced), ("何" + counter, "なん" + voiced)]
    for counter, kana in [("回", "かい"), ("個", "こ"), ("階", "かい"), ("軒", "けん"), ("ヶ月", "かげつ"), ("か月", "かげつ"), ("キロ", "きろ")]:
        part += [(n + counter, stop + kana) for n, stop in stopped.items()]
    for counter, kana in [("歳", "さい"), ("才", "さい"), ("冊", "さつ"), ("世紀", "せいき"), ("週間", "しゅうかん"), ("章", "しょう"), ("秒", "びょう")]:
        part += [(n + counter, stop + kana) for n, stop in stopped.items() if n != "六" and counter != "秒"]
        part += [("何" + counter, "なん" + kana)]
    part += [("三階", "さんがい"), ("三軒", "さんげん")]
    part += [("何" + c, "なん" + k) for c, k in [("人", "にん"), ("時", "じ"), ("回", "かい"), ("年", "ねん"), ("月", "がつ"), ("日", "にち"), ("個", "こ"), ("階", "かい"), ("枚", "まい")]]
    return whole, part


def read_matrix(folder):
    with open(pathlib.Path(folder) / "matrix.def") as f:
        n, _ = map(int, f.readline().split())
        matrix = np.zeros((n, n), np.float32)
        for line in f:
            a, b, c = map(int, line.split())
            matrix[a, b] = c
    return matrix


def reduce_matrix(matrix, rows):
    """k-means over the rows and columns of the context ids, weighted by how many words have them."""
    use = np.bincount([r.id for r in rows], minlength=len(matrix))
    weight = np.log1p(use) + 0.05
    points = np.concatenate([matrix, matrix.T], 1)
    rng = np.random.default_rng(0)
    centres = [points[use.argmax()]]
    nearest = ((points - centres[0]) ** 2).sum(1)
    for _ in range(CLASSES - 1):
        p = nearest * weight
        centres.append(points[rng.choice(len(points), p=p / p.sum())])
        nearest = np.minimum(nearest, ((points - centres[-1]) ** 2).sum(1))
    centres = np.array(centres)
    for _ in range(30):
        label = ((centres ** 2).sum(1)[None] - 2 * points @ centres.T).argmin(1)
        for k in range(CLASSES):
            if (label == k).any():
                centres[k] = np.average(points[label == k], axis=0, weights=weight[label == k])
    share = np.zeros((CLASSES, len(matrix)))
    share[label, np.arange(len(matrix))] = weight
    share /= np.maximum(share.sum(1, keepdims=True), 1e-9)
    reduced = np.clip(np.round(share @ matrix @ share.T / COST_STEP), -127, 127).astype(np.int8)
    return label, reduced


def inflections(rows, label):
    """Verbs and adjectives as stems: {paradigm name: {(suffix, class)}}, [(stem, stem reading, name, cost)]."""
    groups = collections.defaultdict(list)
    for r in rows:
        if r.form not in ARCHAIC:
            groups[r.base, r.conj].append(r)
    found = collections.defaultdict(list)
    paradigms = collections.defaultdict(collections.Counter)
    single = []
    for (base, conj), forms in groups.items():
        stem = base[:-2] if conj.startswith("サ変・−") else base[:-1]
        for r in forms:
            suffix = r.surface[len(stem):]
            if r.surface.startswith(stem) and stem and not KANJI.search(suffix) and r.reading.endswith(hiragana(suffix)):
                paradigms[conj][suffix, label[r.id]] += 1
                found[stem, r.reading[: len(r.reading) - len(suffix)], conj].append(r)
            else:
                single.append(r)
    common = {}
    for conj, forms in paradigms.items():
        top = max(forms.values())
        common[conj] = sorted(f for f, n in forms.items() if n * 10 >= top)
    stems = []
    for (stem, reading, conj), forms in found.items():
        # 来る is read くる, きます, こない: such a stem has no reading of its own
        if conj.startswith("カ変") or len(forms) * 2 < len(common[conj]):
            single += forms
        else:
            stems.append((stem, reading, conj, int(np.median([r.cost for r in forms]))))
    return common, stems, single


class Lattice:
    """The search of languages/ja/lattice.rs, to decide which words can be left out."""

    def __init__(self, matrix, begin, unknown):
        self.matrix = matrix.astype(int).tolist()
        self.begin, self.unknown = begin, unknown
        self.words = collections.defaultdict(list)

    def add(self, surface, reading, cls, cost):
        self.words[surface].append((reading, cls, cost))

    def read(self, text):
        """The reading, with the space in front of は and へ inside it that keeps a word like 横浜 whole."""
        best = [{} for _ in range(len(text) + 1)]  # position -> class -> (cost, reading)
        best[0][self.begin] = (0, "")
        for at in range(len(text)):
            if not best[at]:
                continue
            found = [(w, at + n) for n in range(1, len(text) - at + 1) for w in self.words.get(text[at:at + n], ())]
            found = found or [((hiragana(text[at]), self.unknown, 11426 // COST_STEP), at + 1)]
            for (reading, cls, cost), end in found:
                if at > 0 and reading[0] in "はへ" and KANJI.search(text[at:end]):
                    reading = " " + reading
                total, path = min((c + self.matrix[left][cls], p) for left, (c, p) in best[at].items())
                total += cost
                if cls not in best[end] or total < best[end][cls][0]:
                    best[end][cls] = (total, path + reading)
        return min((c + self.matrix[left][self.begin], p) for left, (c, p) in best[-1].items())[1]


def select(rows, label, matrix):
    """The paradigms [[(suffix, class)]] and the words [(surface, reading, paradigm, cost in steps)] that are kept."""
    step = lambda cost: int(np.clip(round(cost / COST_STEP), -128, 127))
    changing = [r for r in rows if r.pos in ("動詞", "形容詞") and r.conj != "*"]
    common, stems, single = inflections(changing, label)
    names = sorted(common)
    paradigms = [[("", c)] for c in range(CLASSES)] + [common[name] for name in names] + [[("", label[ADVERBIAL_ID])]]
    words = {}

    def keep(surface, reading, paradigm, cost):
        key = surface, paradigm
        if key not in words or cost < words[key][1]:
            words[key] = (reading, cost)

    lattice = Lattice(matrix, label[0], label[UNKNOWN_ID])
    for stem, reading, name, cost in stems:
        keep(stem, reading, CLASSES + names.index(name), step(cost))
        for suffix, cls in common[name]:
            lattice.add(stem + suffix, reading + hiragana(suffix), cls, step(cost))
    plain = single + [r for r in rows if not (r.pos in ("動詞", "形容詞") and r.conj != "*")]
    best = {}
    for r in plain:
        if not KANJI.search(r.surface) and (r.sub == PROPER or (r.pos == "名詞" and re.search("[ァ-ヺ]", r.surface))):
            continue
        key = r.surface, label[r.id]
        if key not in best or r.cost < best[key].cost:
            best[key] = r
    order = sorted(best.values(), key=lambda r: (r.sub == PROPER and len(r.surface) > 1, len(r.surface), r.surface, r.cost))
    seen = collections.defaultdict(dict)
    dropped = 0
    for r in order:
        reading = r.reading if KANJI.search(r.surface) else r.surface
        proper = r.sub == PROPER
        known = seen[r.surface]
        redundant = proper and (known.get(reading) is not None or (known and min(known.values()) <= r.cost))
        long = len(r.surface) > 2 or proper and len(r.surface) > 1
        if redundant or (long and KANJI.search(r.surface) and lattice.read(r.surface) == reading):
            dropped += 1
            continue
        known[reading] = min(r.cost, known.get(reading, r.cost))
        keep(r.surface, reading, label[r.id], step(r.cost))
        lattice.add(r.surface, reading, label[r.id], step(r.cost))
    whole, part = counted()
    for listed, cls, paradigm in [(whole, label[ADVERBIAL_ID], len(paradigms) - 1), (part, label[COUNTER_ID], label[COUNTER_ID])]:
        for surface, reading in listed:
            words[surface, paradigm] = (reading, step(COUNTED_COST))
            lattice.add(surface, reading, cls, step(COUNTED_COST))
    print(f"{len(words)} words kept, {dropped} follow from others")
    return paradigms, [(s, r, p, c) for (s, p), (r, c) in words.items()], lattice


def kana_ends(surface):
    """How many kana the surface starts and ends with, around its first and last kanji."""
    other = [i for i, c in enumerate(surface) if c not in ALL_KANA]
    return other[0], len(surface) - 1 - other[-1]


def trim(surface, reading):
    """A reading as (length byte, kana): without the kana at both ends of the surface, or whole with the top bit set."""
    if not KANJI.search(surface):
        return 0, ""
    head, tail = kana_ends(surface)
    inner = reading[head:len(reading) - tail]
    if hiragana(surface[:head]) + inner + hiragana(surface[len(surface) - tail:]) == reading and inner:
        return len(inner), inner
    return len(reading) | 128, reading


def write(out, paradigms, words, matrix, begin, unknown):
    words = sorted(words, key=lambda w: ([ord(c) for c in w[0]], w[2]))
    streams = collections.defaultdict(bytearray)
    before = ""
    for surface, reading, paradigm, cost in words:
        shared = 0
        while shared < min(len(before), len(surface)) and before[shared] == surface[shared]:
            shared += 1
        streams["shared"] += bytes([shared])
        streams["added"] += bytes([len(surface) - shared])
        for c in surface[shared:]:
            streams["high"].append(ord(c) >> 8)
            streams["low"].append(ord(c) & 255)
        streams["paradigm_high"].append(paradigm >> 8)
        streams["paradigm_low"].append(paradigm & 255)
        streams["cost"].append(cost & 255)
        length, kana = trim(surface, reading)
        streams["reading_length"].append(length)
        streams["kana"] += bytes(KANA.index(c) for c in kana)
        before = surface
    head = bytearray(struct.pack("<4sIHHHH", b"MYJA", len(words), CLASSES, len(paradigms), begin, unknown))
    head += matrix.tobytes()
    for forms in paradigms[CLASSES:]:
        head.append(len(forms))
        for suffix, cls in forms:
            encoded = suffix.encode("utf-16-le")
            head += struct.pack("<HB", cls, len(suffix)) + encoded
    body = bytes(head)
    for name in ("shared", "added", "high", "low", "paradigm_high", "paradigm_low", "cost", "reading_length", "kana"):
        body += struct.pack("<I", len(streams[name])) + bytes(streams[name])
        print(name, len(streams[name]), len(zlib.compress(bytes(streams[name]), 9)))
    packed = zlib.compress(body, 9)
    pathlib.Path(out).write_bytes(packed)
    print(f"{len(body)} bytes, {len(packed)} packed")


def main():
    folder, out = sys.argv[1:]
    rows = read_rows(folder)
    label, matrix = reduce_matrix(read_matrix(folder), rows)
    paradigms, words, lattice = select(rows, label, matrix)
    write(out, paradigms, words, matrix, label[0], label[UNKNOWN_ID])
    return lattice


if __name__ == "__main__":
    main()
