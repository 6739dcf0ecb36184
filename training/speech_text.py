"""Text side of the data: written text -> spoken words for the synthesisers, written text -> T3 character ids, sentence lists."""
import lzma, os, re

HERE = os.path.dirname(os.path.abspath(__file__))
VOCAB = {'[STOP]': 0, '[UNK]': 1, '[SPACE]': 2, '[PAD]': 3, '[SEP]': 4, '[CLS]': 5, '[MASK]': 6, '[START]': 255}
for _i, _c in enumerate("!'(),-./:;?\"&%+*@#$=0123456789"):
    VOCAB[_c] = 10 + _i
for _i, _c in enumerate('abcdefghijklmnopqrstuvwxyz'):
    VOCAB[_c] = 50 + _i
    VOCAB[_c.upper()] = 80 + _i

REPLACEMENTS = (('...', ', '), ('…', ', '), (':', ','), (' - ', ', '), (';', ', '), ('—', '-'), ('–', '-'), (' ,', ','),
                ('“', '"'), ('”', '"'), ('‘', "'"), ('’', "'"))


def punc_norm(t):
    """The reference's English text clean-up (spec 1.1)."""
    if t and t[0].islower():
        t = t[0].upper() + t[1:]
    t = ' '.join(t.split())
    for a, b in REPLACEMENTS:
        t = t.replace(a, b)
    t = t.rstrip(' ')
    return t if t and t[-1] in '.!?-,' else t + '.'


def encode(t):
    """Character ids with [START] and [STOP]."""
    return [255] + [VOCAB['[SPACE]'] if c == ' ' else VOCAB.get(c, 1) for c in t] + [0]


ONES = ('zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen '
        'eighteen nineteen').split()
TENS = '_ _ twenty thirty forty fifty sixty seventy eighty ninety'.split()
ORDINALS = dict(one='first', two='second', three='third', five='fifth', eight='eighth', nine='ninth', twelve='twelfth')
ABBREVIATIONS = {'Dr.': 'doctor', 'Mr.': 'mister', 'Mrs.': 'missis', 'Ms.': 'miz', 'Prof.': 'professor', 'St.': 'saint',
                 'Jr.': 'junior', 'vs.': 'versus', 'etc.': 'et cetera', 'e.g.': 'for example', 'i.e.': 'that is', 'No.': 'number',
                 'approx.': 'approximately', 'dept.': 'department', 'Gen.': 'general', 'Capt.': 'captain', 'a.m.': 'A M',
                 'p.m.': 'P M', 'km': 'kilometers', 'kg': 'kilograms', 'cm': 'centimeters', 'mph': 'miles per hour'}
SPOKEN_ACRONYMS = {'NASA': 'nassa', 'NATO': 'nayto', 'OK': 'okay'}


def number_words(n):
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + (' ' + ONES[n % 10] if n % 10 else '')
    if n < 1000:
        return ONES[n // 100] + ' hundred' + (' ' + number_words(n % 100) if n % 100 else '')
    for size, name in ((10 ** 9, 'billion'), (10 ** 6, 'million'), (1000, 'thousand')):
        if n >= size:
            return number_words(n // size) + ' ' + name + (' ' + number_words(n % size) if n % size else '')


def ordinal_words(n):
    w = number_words(n).split(' ')
    last = w[-1]
    w[-1] = ORDINALS.get(last) or (last[:-1] + 'ieth' if last.endswith('y') else last + 'th')
    return ' '.join(w)


def year_words(n):
    if 2000 <= n < 2010 or n % 1000 == 0:
        return number_words(n)
    a, b = divmod(n, 100)
    return number_words(a) + ' ' + ('hundred' if b == 0 else 'oh ' + ONES[b] if b < 10 else number_words(b))


def _money(m):
    d, c = int(m[2].replace(',', '')), int(m[3] or 0)
    unit = {'$': 'dollar', '#': 'pound'}.get(m[1], 'dollar')
    s = number_words(d) + ' ' + unit + ('' if d == 1 else 's')
    return s + (f' and {number_words(c)} cent' + ('' if c == 1 else 's') if c else '')


def _clock(m):
    h, mi = int(m[1]), int(m[2])
    return number_words(h) + (' ' + ("o'clock" if mi == 0 else ('oh ' if mi < 10 else '') + number_words(mi)))


def _plain(m):
    t = m[0]
    n = int(t.replace(',', ''))
    if ',' not in t and len(t) > 1 and t[0] == '0' or len(t) > 9:
        return ' '.join(ONES[int(c)] for c in t if c.isdigit())
    return year_words(n) if ',' not in t and 1100 <= n < 2100 else number_words(n)


def spoken(t):
    """Written text -> words that every synthesiser reads alike (numbers, dates, money, abbreviations, acronyms)."""
    t = re.sub(r'([$#])(\d[\d,]*\d|\d)(?:\.(\d\d))?', _money, t)
    t = re.sub(r'\b(\d{1,2}):(\d\d)\b', _clock, t)
    t = re.sub(r'\b(\d{1,3})(st|nd|rd|th)\b', lambda m: ordinal_words(int(m[1])), t)
    t = re.sub(r'(\d)%', r'\1 percent', t)
    t = re.sub(r'\b(\d+)\.(\d+)\b', lambda m: number_words(int(m[1])) + ' point ' + ' '.join(ONES[int(c)] for c in m[2]), t)
    t = re.sub(r'\b\d+-\d+(?:-\d+)*\b', lambda m: ', '.join(' '.join(ONES[int(c)] for c in g) for g in m[0].split('-')), t)
    t = re.sub(r'\d[\d,]*\d|\d', _plain, t)
    for k, v in ABBREVIATIONS.items():
        if k in t:
            t = re.sub(r'(?<![A-Za-z])' + re.escape(k) + r'(?=\s*$)', v + '.' if k.endswith('.') else v, t)
            t = re.sub(r'(?<![A-Za-z])' + re.escape(k) + r'(?![A-Za-z])', v, t)
    t = re.sub(r'\b[A-Z]{2,5}\b', lambda m: SPOKEN_ACRONYMS.get(m[0]) or (' '.join(m[0]) if m[0] in ACRONYMS else m[0].lower()), t)
    t = t.replace('&', ' and ').replace('+', ' plus ').replace('=', ' equals ').replace('@', ' at ')
    return ' '.join(t.split())


ACRONYMS = set('US UK EU UN TV PC CD DVD USB FBI CIA BBC CNN CEO PDF GPS DNA MIT IBM AI HR IT ID ATM VIP FAQ GPU CPU RAM'.split())


def words(t):
    """Lower-case word list of the spoken form, for error rates."""
    return re.sub(r"[^a-z' ]", ' ', spoken(t).lower().replace('-', ' ')).split()


def load_sentences(path=None):
    """-> (sentences, index of the first held-out one); the last 1/200 is never trained on."""
    L = lzma.open(path or f'{HERE}/data/sentences.txt.xz', 'rt').read().splitlines()
    return L, len(L) - max(200, len(L) // 200)


def sample_text(rng, sents, lo, hi, limit=230):
    """A random utterance: one sentence, or several up to a target length."""
    i = rng.randrange(lo, hi)
    out, n = [sents[i]], len(sents[i])
    target = rng.choice([0, 0, 0, 60, 90, 120, 150, 180])
    while n < target:
        i = rng.randrange(lo, hi)
        if n + len(sents[i]) + 1 > limit:
            break
        out.append(sents[i])
        n += len(sents[i]) + 1
    return ' '.join(out)
