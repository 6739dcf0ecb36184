"""Stand-in tokenizer files in the formats of the real repositories, and what the Hugging Face packages make of them.

The real vocabularies are not redistributable here; these are small, but have the special tokens, the pre-tokenizers,
the gaps and the added tokens of the real ones. Everything is written under <out>/text/.
"""
import json
import os
import unicodedata
from pathlib import Path

TEXTS = [
    "", " ", "hello", " hello  world", "Hi... there", "a—b – c", "ok:", "wait; what - yes", "He said “hi”", "你好。", "你好",
    "ßa", "end ,", "tab\tnew\nline", "x…", "éa", "ǆ", "a b　c", "Stop!", "5 - 3", "それは東京です。", "한국어 텍스트",
    "Ünïcödé Ｆｕｌｌ，ｗｉｄｔｈ", "שלום", "Привет, мир", "don’t…stop", "ﬁne ①②", "が ぱ ヴ", "各", "日本へ行く", "母は花が好きです",
    "İstanbul", "ΑΣ", "a,b ;c", "...", "What? 、", "naïve café", "[laugh] well", "a  ,  b", "\u00a0x",
]
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
MERGES = ["t h", "th e", "i n", "e r", "a n", "o u", "an d", "in g", "h e", "l l", "he ll", "hell o", "w o", "wo r", "s t", "T h", "Th e"]


def special(id_, content):
    return dict(id=id_, content=content, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)


def bpe_json(vocab, added, merges):
    return dict(version="1.0", truncation=None, padding=None, added_tokens=[special(i, t) for t, i in added], normalizer=None,
                pre_tokenizer=dict(type="Whitespace"), post_processor=None, decoder=None,
                model=dict(type="BPE", dropout=None, unk_token="[UNK]", continuing_subword_prefix=None, end_of_word_suffix=None,
                           fuse_unk=False, vocab=vocab, merges=merges))


def english(folder):
    """tokenizer.json: special ids as in the real file, gaps between."""
    added = [("[STOP]", 0), ("[UNK]", 1), ("[SPACE]", 2), ("[START]", 255), ("[UH]", 604), ("[giggle]", 606)]
    pieces = list("!'(),-.:;?\"/0123456789") + list(LETTERS) + [m.replace(" ", "") for m in MERGES]
    vocab = dict(added[:3]) | {p: 3 + i for i, p in enumerate(pieces)} | dict(added[3:])
    json.dump(bpe_json(vocab, added, MERGES), open(folder / "tokenizer.json", "w"), ensure_ascii=False)


def multilingual(folder):
    """grapheme_mtl_merged_expanded_v1.json and Cangjie5_TC.json."""
    languages = "ar da de el en es fi fr he hi it ja ko ms nl no pl pt ru sv sw tr zh".split()
    added = [("[STOP]", 0), ("[UNK]", 1), ("[SPACE]", 2), ("[START]", 255)] + [(f"[{l}]", 700 + i) for i, l in enumerate(languages)]
    added += [(f"[cj_{c}]", 730 + i) for i, c in enumerate("abcdefghijklmnopqrstuvwxyz0123456789.")]
    pieces = list("!'(),-.:;?\"0123456789") + list(LETTERS[:26]) + [m.replace(" ", "") for m in MERGES if m.islower()]
    pieces += sorted({c for t in TEXTS for c in unicodedata.normalize("NFKD", t.lower()) if ord(c) > 0x2ff and unicodedata.category(c) in ("Lo", "Ll", "Mn")} - set("你好東京各日本行母花好語"))
    ids = iter(i for i in range(3, 700) if i != 255)
    vocab = dict(added) | {p: next(ids) for p in pieces}
    json.dump(bpe_json(vocab, added, [m for m in MERGES if m.islower()]), open(folder / "grapheme_mtl_merged_expanded_v1.json", "w"), ensure_ascii=False)
    # duplicates of a code get an index; the last line re-assigns a character but leaves it in its old list
    table = ["你\tonf", "好\tvnd", "妤\tvnin", "東\tdw", "柬\tdwf", "日\ta", "曰\ta", "月\tb", "明\tab", "晶\taaa", "一\tm", "中\tl", "國\twirm", "人\to", "入\toh", "曰\taa", "旦\tam", "昌\taa"]
    json.dump(table, open(folder / "Cangjie5_TC.json", "w"), ensure_ascii=False)


def gpt2(folder):
    """vocab.json, merges.txt, added_tokens.json and the configuration files AutoTokenizer wants."""
    def byte_alphabet():
        keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
        rest = [b for b in range(256) if b not in keep]
        return [chr(b) for b in keep] + [chr(256 + i) for i in range(len(rest))]

    merges = ["Ġ t", "h e", "Ġt he", "i n", "e r", "a n", "Ġ a", "l l", "he ll", "hell o", "o r", "Ġ w", "Ġw or", "l d", "Ġwor ld", "in g", "o u"]
    vocab = {}
    for piece in byte_alphabet() + [m.replace(" ", "") for m in merges] + ["<|endoftext|>"]:
        vocab[piece] = len(vocab)
    tags = "[angry] [fear] [surprised] [whispering] [advertisement] [dramatic] [narration] [crying] [happy] [sarcastic] [clear throat] [sigh] [shush] [cough] [groan] [sniff] [gasp] [chuckle] [laugh]"
    tags = [t + "]" for t in tags.rstrip("]").split("] ")]
    added = {t: len(vocab) + i for i, t in enumerate(tags)}
    dump = lambda name, v: json.dump(v, open(folder / name, "w"), ensure_ascii=False)
    dump("vocab.json", vocab)
    dump("added_tokens.json", added)
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    end = "<|endoftext|>"
    dump("special_tokens_map.json", dict(bos_token=end, eos_token=end, unk_token=end))
    decoder = {str(i): {k: v for k, v in special(i, t).items() if k != "id"} | dict(special=False) for t, i in added.items()}
    decoder[str(vocab[end])] = {k: v for k, v in special(0, end).items() if k != "id"}
    dump("tokenizer_config.json", dict(add_prefix_space=False, added_tokens_decoder=decoder, bos_token=end, eos_token=end,
                                       unk_token=end, model_max_length=1024, tokenizer_class="GPT2Tokenizer"))


def main(out):
    out = Path(out) / "text"
    for name in ("english", "multilingual", "gpt2"):
        (out / name).mkdir(parents=True, exist_ok=True)
    english(out / "english")
    multilingual(out / "multilingual")
    gpt2(out / "gpt2")

    from transformers import AutoTokenizer

    import chatterbox.models.tokenizers.tokenizer as tk
    from chatterbox.mtl_tts import punc_norm as punc_mtl
    from chatterbox.tts import punc_norm as punc_english
    from chatterbox.tts_turbo import punc_norm as punc_turbo

    tk.hf_hub_download = lambda repo_id, filename, cache_dir=None: str(out / "multilingual" / filename)
    cangjie_init = tk.ChineseCangjieConverter._init_segmenter
    tk.ChineseCangjieConverter._init_segmenter = lambda self: setattr(self, "segmenter", None)  # its model is a download
    en = tk.EnTokenizer(str(out / "english" / "tokenizer.json"))
    mtl = tk.MTLTokenizer(str(out / "multilingual" / "grapheme_mtl_merged_expanded_v1.json"))
    gpt = AutoTokenizer.from_pretrained(out / "gpt2")

    cases = []
    nfkd = lambda t: unicodedata.normalize("NFKD", t.lower())
    for t in TEXTS:
        mt = punc_mtl(t)
        cases.append(dict(
            text=t, english=punc_english(t), turbo=punc_turbo(t), multilingual=mt, mtl_lower_nfkd=nfkd(mt),
            ko=tk.korean_normalize(nfkd(mt)), ja=tk.hiragana_normalize(nfkd(mt)), zh_unsegmented=mtl.cangjie_converter(nfkd(mt)),
            english_ids=en.encode(punc_english(t)), turbo_ids=gpt(punc_turbo(t)).input_ids,
            multilingual_ids={l or "none": mtl.encode(mt, language_id=l) for l in ("en", "ja", "ko", "zh", "fr", None)}))
    extra = dict(english=[dict(text=t, ids=en.encode(t)) for t in ("[UH] the[SPACE]end", "the thing, and the other", "日x", "[START]a[STOP]")],
                 turbo=[dict(text=t, ids=gpt(t).input_ids) for t in ("Hi [laugh] the world", "[clear throat]hello the", "  two  spaces", "naïve 日本", "<|endoftext|>", "it's we'll 123 --- !?")])
    os.makedirs(out, exist_ok=True)
    with open(out / "text_cases.json", "w") as f:
        json.dump(dict(note="english/turbo/multilingual: punc_norm. *_ids: of the punc_norm text, without T3's start and stop. zh without word segmentation.",
                       cases=cases, tokenizer_only=extra), f, ensure_ascii=False, indent=0)
    tk.ChineseCangjieConverter._init_segmenter = cangjie_init
    print("text fixtures:", sum(p.stat().st_size for p in out.rglob("*") if p.is_file()), "bytes")
