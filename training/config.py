"""Sizes of the embedded model (the same fields end up in the shipped config.json)."""
CFG = dict(
    ve=dict(num_mels=40, hidden=256, embed=256, layers=3, partial=160),
    tok=dict(n_mels=128, state=192, head=3, layer=3),
    spk=dict(m=16, init=64, growth=16, bn=4, blocks=(6, 12, 8), embed=192),
    flow=dict(dim=160, heads=4, ff=384, blocks=2, up_blocks=2, vocab=6561, spk=192, est=dict(ch=128, heads=4, hd=32, n_blocks=1, mid=4)),
    hift=dict(base=128, f0_ch=128),
    t3=dict(dim=256, heads=4, layers=8, ff=512, text_vocab=256, speech_vocab=6563, max_text=320, max_speech=640, prompt=150, spk=256, queries=32, perceiver_heads=4),
)
SOT, EOT, BOS, EOS = 255, 0, 6561, 6562
