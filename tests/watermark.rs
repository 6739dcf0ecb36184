//! The watermark on real clips: the sample voices, marked as a stream and stored in 16 bits like everything that is saved.
#![allow(clippy::unwrap_used, missing_debug_implementations)]

use std::path::Path;

use myna::audio_file::decode;
use myna_engine::dsp::resample::resample;
use myna_engine::watermark::{SAMPLE_RATE_HZ, WatermarkDetector, Watermarker};

#[test]
fn the_sample_voices_carry_no_mark_until_they_are_marked() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (marker, detector) = (Watermarker::embedded().unwrap(), WatermarkDetector::embedded().unwrap());
    let voices = std::fs::read_dir(root.join("assets/voices")).unwrap().map(|entry| entry.unwrap().path());
    let voices: Vec<_> = voices.filter(|path| path.extension().is_some_and(|e| e == "flac")).collect();
    assert!(voices.len() >= 6);
    for path in voices {
        let pcm = decode(&path).unwrap();
        let plain = resample(&pcm.samples, pcm.sample_rate_hz, SAMPLE_RATE_HZ).unwrap();
        let (mut state, mut marked) = (marker.start(), Vec::new());
        for chunk in plain.chunks(19_200) {
            marked.extend(marker.push(&mut state, chunk).unwrap());
        }
        marked.extend(marker.finish(state).unwrap());
        assert_eq!(marked.len(), plain.len());
        for sample in &mut marked {
            *sample = (sample.clamp(-1.0, 1.0) * 32_767.0).round() / 32_767.0;
        }
        let scores = [&plain, &marked].map(|clip| detector.detect(clip, SAMPLE_RATE_HZ).unwrap());
        assert!(scores[0] < 0.3 && scores[1] > 0.9, "{}: {scores:?}", path.display());
        let power = |xs: &mut dyn Iterator<Item = f32>| xs.map(|x| x * x).sum::<f32>();
        let part = power(&mut plain.iter().zip(&marked).map(|(p, m)| p - m)) / power(&mut plain.iter().copied());
        assert!(part < 0.1, "{}: the mark holds {part} of the power", path.display());
    }
}
