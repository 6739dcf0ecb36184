"""Writes data/sentences.txt.xz: about 240 k English sentences from WordNet glosses and examples (free licence), the King James
Bible (public domain) and templates over word lists.  Needs the Debian packages wordnet-base, bible-kjv, wamerican-small."""
import lzma, os, random, re, subprocess, sys
from collections import Counter

HERE = os.path.dirname(os.path.abspath(__file__))
random.seed(7)
OK = re.compile(r"^[A-Za-z0-9 ,.!?'\-&%$:+@]+$")
BAD = re.compile(r'(?i)\b(fuck|shit|cunt|nigg|whore|bitch|slut|rape|rapist|penis|vagina|faggot|condom|harlot|porn|incest|coitus|anus|genital)')
sents = {}


def add(s, src, lo=12, hi=170, minw=3):
    s = s.strip().replace('`', "'").replace("''", '"')
    s = re.sub(r'\s+', ' ', s).strip(' ;,')
    s = s.replace('(', '').replace(')', '').replace(';', ',').replace('"', '').replace('--', ', ')
    s = re.sub(r'\s+,', ',', s)
    s = re.sub(r',+', ',', s)
    if not s or not OK.match(s) or BAD.search(s) or not lo <= len(s) <= hi or len(s.split()) < minw:
        return
    if src in ('gloss', 'bible') and sum(c.isupper() for c in s) > .3 * len(s):
        return
    if s[-1] not in '.!?':
        ask = re.match(r'(?i)^(who|what|where|when|why|how|is|are|do|does|did|can|could|will|would|shall|have|has)\b', s)
        s += '?' if ask and random.random() < .8 else '.'
    sents.setdefault(s[0].upper() + s[1:], src)


def wordnet(root='/usr/share/wordnet'):
    freq, pos_words = Counter(), {}
    for line in open(f'{root}/cntlist.rev'):
        p = line.split()
        freq[p[0].split('%')[0]] += int(p[2])
    for pos in ('noun', 'verb', 'adj', 'adv'):
        found = set()
        for line in open(f'{root}/data.{pos}', encoding='latin1'):
            if line.startswith('  '):
                continue
            head, _, gloss = line.partition('|')
            w = re.sub(r'\(.*\)', '', head.split()[4])
            if re.match(r'^[a-z]+$', w) and len(w) > 1 and not BAD.search(w):
                found.add(w)
            for ex in re.findall(r'"([^"]+)"', gloss):
                add(ex, 'example')
            for d in re.sub(r'"[^"]*"', '', gloss).split(';'):
                add(re.sub(r'\([^)]*\)', '', d), 'gloss')
        pos_words[pos] = sorted(found)
    top = lambda p, n: sorted(pos_words[p], key=lambda w: -freq[w])[:n]
    return freq, pos_words, top


def bible():
    lines = subprocess.run(['bible', '-f', 'gen1:1-rev22:21'], capture_output=True, text=True).stdout.splitlines()
    random.shuffle(lines)
    for line in lines[:16000]:
        t = line.split(' ', 1)
        if len(t) == 2:
            for c in re.split(r'(?<=[.;:?!])\s+', t[1]):
                add(c.rstrip(':;'), 'bible')


NAMES = ('Anna Peter Maria John Susan David Emma Oliver Lucy Henry Grace Thomas Julia Robert Alice Samuel Clara Daniel Rosa Martin Nina Victor '
         'Hannah Edward Sophie George Laura Frank Helen Arthur Michael Jennifer William Jessica James Karen Linda Kevin Rachel Brian Olivia Jack '
         'Ethan Mia Noah Isabella Liam Amelia Lucas Charlotte Benjamin Zoe Nathan Chloe Simon Megan Andrew Fiona Patrick Natalie').split()
SURNAMES = ('Smith Johnson Brown Taylor Miller Wilson Moore Clark Lewis Walker Young King Wright Scott Green Baker Adams Nelson Hill Carter '
            'Mitchell Turner Parker Evans Collins Stewart Morris Murphy Cook Rogers Morgan Cooper Bailey Reed Kelly Howard Ward Watson Brooks').split()
CITIES = ('London Paris Boston Dublin Vienna Tokyo Madrid Chicago Berlin Oslo Sydney Toronto Rome Lisbon Geneva Cairo Seattle Denver Austin Prague '
          'Athens Amsterdam Brussels Melbourne Edinburgh Manchester Houston Atlanta Philadelphia Montreal').split()
MONTHS = 'January February March April May June July August September October November December'.split()
DAYS = 'Monday Tuesday Wednesday Thursday Friday Saturday Sunday'.split()
SINGLE = ('Yes. No. Hello. Hello! Hi! Thanks. Thank you. Please. Stop! Wait. Wait! Really? Why? What? Who? Where? When? How? Sure. Okay. Right. '
          'Exactly. Maybe. Perhaps. Never. Always. Sorry. Goodbye. Welcome. Congratulations! Wonderful! Great! Help! Listen. Look! Absolutely. '
          'Indeed. Nothing. Everything. Again. Tomorrow. Today. Yesterday. Good. Fine. Nonsense! Careful! Go! Run! Now! Later. Silence. Attention!').split()
SHORT = ('Good morning.|Good night.|Not yet.|Of course.|I see.|Come in.|Sit down.|Who knows?|What now?|Why not?|Thank you so much.|See you soon.|I do not know.|'
         'That is fine.|It works!|No problem.|Never mind.|You are right.|Let me think.|How are you?|I am fine.|Where is it?|What time is it?|Are you sure?|'
         'Come here!|Be quiet, please.|Well done!|Watch out!|My name is Anna.|This is a test.|One moment, please.|I agree.|Me too.|Not at all.|So what?').split('|')
EVERYDAY = [l for l in """
The weather will be {w} and {w} for the rest of the week.
I'll call you back in {n} minutes.
Could you please send me the report by {d}?
I have no idea what you're talking about.
She has been working here for {n} years.
Let's meet at the {p} at {t}.
I'm looking forward to seeing you next {d}.
Do you want some more {f} with that?
We need to buy {f}, {f} and {f} before {name} arrives.
My phone number is {ph}.
The meeting has been moved to {d} at {t}.
{name} and I went to the {p} last {d}, and it was {w}.
How much does this {n2} cost? It's only {m}.
Don't forget to bring your {n2} and your {n2}.
I can't believe that {name} sold the {n2} for {m}!
If it's {w} tomorrow, we'll stay at home and read.
He asked me whether I had seen the {n2}, but I hadn't.
They're planning to open a new {p} in {city} next {mo}.
Turn left at the {p}, then go straight for {n} miles.
This is by far the best {n2} that I have ever had.
What do you think about the new {n2}?
I'd like a table for {n}, please.
The doctor told {name} to rest for {n} days.
You should've told me earlier, {name}.
We've been waiting here since {t}.
Are you coming with us to {city}, or would you rather stay here?
Well, to be honest, I didn't like the {n2} very much.
It's getting late, so I think I should go home now.
Somebody left a {a} {n2} in front of the {p}.
Have you ever been to {city} in {mo}?
The {a} {n2} belongs to my {r}.
My {r} was born in {city} on {mo} {day}.
Ladies and gentlemen, please welcome {title} {name} {sur}.
The quick brown fox jumps over the lazy dog.
In {y}, the population of {city} was about {big}.
Roughly {pc}% of all visitors come from {city}.
The temperature fell to {dec} degrees during the night.
Flight {fl} to {city} departs at {t} from gate {n}.
Please dial {ph} and ask for {title} {sur}.
The {ord} chapter is about the {n2} and its {a} history.
Room {n3} is on the {ord} floor.
He was the {ord} person in line, and he still got a ticket!
The total comes to {m}, including tax.
Our {r} lives at {n3} {sur} Street in {city}.
""".strip().splitlines() if l]
FILL = dict(w='warm sunny cold wet windy beautiful terrible quiet cloudy lovely'.split(), p='station library museum park airport office restaurant market cinema hospital school bridge hotel'.split(),
            f='bread milk coffee tea rice cheese apples soup chocolate water sugar eggs butter pasta fish'.split(), r='sister brother uncle mother father neighbor teacher cousin grandmother'.split(),
            a='small old green strange heavy broken expensive blue modern famous'.split(), title='Dr. Mr. Mrs. Prof. Ms. Capt.'.split())


def everyday(nouns):
    R, I = random.choice, random.randint
    f = {k: (lambda v=v: R(v)) for k, v in FILL.items()}
    f.update(n=lambda: str(I(2, 60)) if random.random() < .5 else R('two three four five six seven ten twelve'.split()), d=lambda: R(DAYS), mo=lambda: R(MONTHS), name=lambda: R(NAMES),
             sur=lambda: R(SURNAMES), city=lambda: R(CITIES), n2=lambda: R(nouns), t=lambda: f'{I(1, 12)}:{R([0, 5, 10, 15, 20, 30, 40, 45, 50]):02d}' + R(['', ' a.m.', ' p.m.']),
             m=lambda: f'${I(1, 300)}' + R(['', f'.{I(1, 99):02d}']), ph=lambda: f'555-{I(0, 9999):04d}', y=lambda: str(I(1200, 2035)), pc=lambda: str(I(1, 100)),
             big=lambda: f'{I(10, 999)},{I(0, 999):03d}', dec=lambda: f'{I(0, 40)}.{I(1, 9)}', fl=lambda: str(I(100, 999)), day=lambda: f'{I(1, 28)}' + R(['', '', 'th']) , n3=lambda: str(I(1, 1500)),
             ord=lambda: (lambda k: f"{k}{'th' if 10 < k % 100 < 14 else {1: 'st', 2: 'nd', 3: 'rd'}.get(k % 10, 'th')}")(I(1, 40)))
    s = re.sub(r'\{(\w+)\}', lambda m: f[m[1]](), R(EVERYDAY))
    return re.sub(r'\b([123])th\b', lambda m: m[1] + {'1': 'st', '2': 'nd', '3': 'rd'}[m[1]], s)


def templates(N, V, A, D):
    R, I = random.choice, random.randint
    an = lambda w: ('an ' if w[0] in 'aeiou' else 'a ') + w
    return [
        lambda: f'The {A()} {N()} was {A()} and {A()}.', lambda: f'I think we should {V()} the {N()} before {R(DAYS)}.',
        lambda: f'Can you {V()} the {N()} for {R(NAMES)}?', lambda: f'{R(NAMES)} and {R(NAMES)} went to {R(CITIES)} in {R(MONTHS)}.',
        lambda: f'Please {V()} {an(N())} and then {V()} the {A()} {N()}.', lambda: f'What {an(A())} {N()}! I have never seen {an(N())} like that.',
        lambda: f'My {N()} is {A()}, but your {N()} is {D()} {A()}.', lambda: f'{R(NAMES)} said, I will {V()} the {N()} {D()}.',
        lambda: f'Why did {R(NAMES)} {V()} the {A()} {N()} so {D()}?', lambda: f'There were {I(2, 99)} {A()} people and {an(N())} in the room.',
        lambda: f'On {R(MONTHS)} {I(1, 28)}, {I(1700, 2030)}, the {N()} was finally finished.', lambda: f'Hello {R(NAMES)}, this is {R(NAMES)}. How is the {N()} today?',
        lambda: f"Good {R(['morning', 'evening', 'afternoon'])}, and welcome to {R(CITIES)}.", lambda: f'{N().capitalize()}, {N()}, {N()}, and {N()}.',
        lambda: f'{A().capitalize()} {N()}. {A().capitalize()} {N()}.', lambda: f'If you {V()} the {N()}, you must not {V()} the {N()}.',
        lambda: f'It is {D()} {A()} to {V()} without {an(N())}.', lambda: f"We don't know whether the {N()} can {V()}, do we?",
        lambda: f"That's {R(NAMES)}'s {N()}, isn't it?", lambda: f"You're {D()} right, I shouldn't {V()} it.",
        lambda: f"Wait! {R(NAMES)} hasn't heard about the {N()} yet.", lambda: f"Yes, of course. Let's {V()} it together.",
        lambda: f"No, thank you, I'd rather {V()} the {N()}.", lambda: f'Chapter {I(1, 40)}. The {A()} {N()}.', lambda: f'{I(3, 999)} {N()} and {I(2, 20)} {N()}.',
        lambda: f"The {R(sorted(['US', 'UK', 'FBI', 'BBC', 'NASA', 'UN', 'EU', 'CEO', 'TV', 'IBM']))} {N()} of {R(CITIES)} is {A()}.",
        lambda: f"{R(['Dr.', 'Mr.', 'Mrs.', 'Prof.'])} {R(SURNAMES)} bought {an(N())} for ${I(1, 999)}.{I(10, 99)} on {R(DAYS)}.",
        lambda: f'At {I(1, 12)}:{I(10, 59)} {R(["a.m.", "p.m."])} the {N()} was {A()}, and by {R(DAYS)} it had become {D()} {A()}, so {R(NAMES)} decided to {V()} it once more.',
        lambda: f'Although the {N()} seemed {A()}, {R(NAMES)} {R(SURNAMES)} wanted to {V()} every {N()} in {R(CITIES)}, which was {D()} {A()} at the time.',
        lambda: f"{N().upper()}! {R(['Stop', 'Come', 'Look'])} at the {N()}!", lambda: f'{N().capitalize()}.', lambda: f'{A().capitalize()} {N()}!', lambda: f'The {N()}?',
    ]


def main():
    freq, pos, top = wordnet()
    bible()
    nf, vf, af, rf = top('noun', 3000), top('verb', 1500), top('adj', 1500), top('adv', 500)
    R, r = random.choice, random.random
    N = lambda: R(nf) if r() < .7 else R(pos['noun'])
    V = lambda: R(vf) if r() < .7 else R(pos['verb'])
    A = lambda: R(af) if r() < .7 else R(pos['adj'])
    T = templates(N, V, A, lambda: R(rf))
    for _ in range(42000):
        add(R(T)(), 'template', 3, 200, 1)
    for _ in range(30000):
        add(everyday(nf[:1200]), 'everyday', 3, 200, 1)
    wl = [w.strip() for w in open('/usr/share/dict/american-english-small', encoding='utf8')]
    wl = [w for w in wl if re.match(r"^[A-Za-z][a-z']+$", w) and not w.endswith("'s")]
    for _ in range(2):                                  # every word of the list twice, in short lists
        random.shuffle(wl)
        i = 0
        while i < len(wl):
            k = random.randint(3, 9)
            add((', ' if r() < .35 else ' ').join(wl[i:i + k]), 'words')
            i += k
    common = [w for w in sorted(freq, key=lambda w: -freq[w]) if re.match(r'^[a-z]+$', w)][:4000]
    for w in common:
        add(f"{R(['I said', 'The word is', 'Now say', 'Again', 'Listen'])}, {w}, {R(common)}, {R(common)}", 'words')
        add(w, 'single', 2, 40, 1)
    L = list(sents.items())
    L += [(s, 'single') for s in SINGLE * 8 + SHORT * 8]
    random.shuffle(L)
    print(len(L), Counter(s for _, s in L), 'mean length', sum(len(x) for x, _ in L) / len(L))
    os.makedirs(f'{HERE}/data', exist_ok=True)
    with lzma.open(f'{HERE}/data/sentences.txt.xz', 'wt', preset=6) as f:
        f.write('\n'.join(s for s, _ in L) + '\n')


if __name__ == '__main__':
    main()
